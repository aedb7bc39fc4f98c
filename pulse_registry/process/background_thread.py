"""Background thread that is started when there is something to do, woken by news, and stopped and joined on close."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundThread:
    """One daemon thread: a process that ends without closing it does not wait for it.

    Attributes:
        changed: is held while what the thread looks at is changed.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        """Take the thread's name and what it does, which returns once `rest` says so; no thread yet."""
        self.changed = threading.Condition()
        self._name, self._work = name, work
        self._thread: threading.Thread | None = None
        self._stopping = False

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stopping

    def wake(self) -> None:
        """Start the thread, or let it look again; call it with `changed` held.

        Raises:
            RuntimeError: this process can have no more threads; the next call tries again.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        self.changed.notify_all()

    def rest(self, seconds: float | None, until: Callable[[], bool] = lambda: False) -> bool:
        """Wait, in the thread, with `changed` held, and tell whether it was told to stop.

        Args:
            seconds: at most; None: for ever.
            until: what ends it earlier, besides `stop`.
        """
        self.changed.wait_for(lambda: self._stopping or until(), seconds)
        return self._stopping

    def stop(self) -> None:
        """Tell the thread to stop, and return at once. Idempotent."""
        with self.changed:
            self._stopping = True
            self.changed.notify_all()

    def close(self, seconds: float | None = None) -> None:
        """Tell the thread to stop, and wait until it has ended, so many seconds at most if given. Idempotent."""
        self.stop()
        if self._thread is not None:
            self._thread.join(seconds)
