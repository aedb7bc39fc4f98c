"""Fork safety: threads, held locks and connections do not survive a fork of the process that made them."""

from __future__ import annotations

import os
from collections.abc import Callable

from pulse_registry.errors import InvalidArgument


class OwnerProcess:
    """The process that something was made in: what a fork made has none of its threads."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether this process is that one."""
        return os.getpid() == self._pid

    def check(self, what: str) -> None:
        """Refuse to use something in a process that was forked from its own.

        Raises:
            InvalidArgument: this is another process.
        """
        if not self.is_current:
            raise InvalidArgument(
                f"{what} is of process {self._pid}, and this is process {os.getpid()}, which was forked from it "
                "and has none of its threads: open the run again in this process"
            )


def only_in_this_process(call: Callable[[], object]) -> Callable[[], None]:
    """Return a call that does nothing in a process that is forked from this one."""
    owner = OwnerProcess()

    def guarded() -> None:
        if owner.is_current:
            call()

    return guarded
