"""Warm-up of the compiled loops: a background thread that compiles them ahead of their need, and never across a fork.

A fork waits for the step at hand, which is a loop or the import of numba (a second or two at most, in the first seconds
of a process, and nothing later), and so does the end of the process. Nothing here imports numba.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from pulse_kernels.select import get_backend

_logger = logging.getLogger(__name__)


class Ahead:
    """Background thread that works ahead of need; neither an exit nor a fork waits for it longer than one step.

    It is no daemon: a process that ends while such a thread is inside the compiler may crash.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], None]) -> None:
        """Take the work; it calls what it is given between its steps, and ends once that returns True."""
        self._work = work
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = self._ended = False

    def begin(self) -> None:
        """Start the thread, unless it was started; return at once."""
        with self._lock:
            if self._thread is None and not self._ended:
                self._start()

    def join(self) -> None:
        """Wait until the work has ended."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def before_fork(self) -> None:
        """Stop after the step at hand, so that the process forks without this thread."""
        self._lock.acquire()
        if self._thread is not None:
            self._stopping = True
            self._thread.join()
            self._stopping = False

    def after_fork_in_parent(self) -> None:
        """Go on."""
        if self._thread is not None and not self._ended:
            self._start()
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Wait to be begun again: this process may need nothing of it."""
        self._thread = None
        self._lock.release()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="pulse-warm-up")
        self._thread.start()

    def _stopped(self) -> bool:
        return self._stopping or not threading.main_thread().is_alive()

    def _run(self) -> None:
        try:
            self._work(self._stopped)
        except Exception:
            # The thread's outermost edge: whoever needs the loop meets the same error, in a thread of its own.
            _logger.debug("not compiled ahead", exc_info=True)
        self._ended = not self._stopping


def _warm_up(stopped: Callable[[], bool]) -> None:
    backend = get_backend()
    if not stopped():
        backend.warm_up(2, stopped)


_ahead = Ahead(_warm_up)


def warm_up_ahead() -> None:
    """Compile the loops for 16-bit cells in the background, once a process; return at once."""
    _ahead.begin()


# At import, and so once a process: a hook can't be taken back, and two of them would wait for each other. The
# compiler's lock registered its hooks before these: a fork stops this thread first, and takes the lock then.
os.register_at_fork(
    before=lambda: _ahead.before_fork(),
    after_in_parent=lambda: _ahead.after_fork_in_parent(),
    after_in_child=lambda: _ahead.after_fork_in_child(),
)
