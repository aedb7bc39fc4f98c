"""The lock of the compiler: one thread compiles at a time, and no process forks meanwhile.

What is compiled holds locks of the compiler, and of Python's imports, that no forked child could ever take again.
Nothing here imports numba.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType


class Turn:
    """A fair lock: threads get it in turn, and who releases it is not the next again while another waits."""

    def __init__(self) -> None:
        self._next, self._lock = threading.Lock(), threading.Lock()

    @property
    def awaited(self) -> bool:
        """Whether a thread waits for its turn."""
        return self._next.locked()

    def __enter__(self) -> None:
        with self._next:
            self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


COMPILING = Turn()
"""Held by whoever compiles a loop or imports the compiler."""


def _release() -> None:
    COMPILING.__exit__(None, None, None)


# At import, and so once a process: a hook can't be taken back, and two of them would wait for each other.
os.register_at_fork(before=COMPILING.__enter__, after_in_parent=_release, after_in_child=_release)
