"""Fork safety: threads, held locks and connections do not survive a fork of the process that made them."""

from __future__ import annotations

import os
from collections.abc import Callable

from pulse_registry.errors import InvalidArgument


class Home:
    """Remembers the process that it was made in."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def here(self) -> bool:
        """Whether this is that process."""
        return os.getpid() == self._process

    def check(self, what: str) -> None:
        """Refuse to use something in a process that was forked from its own.

        Raises:
            InvalidArgument: this is another process.
        """
        if not self.here:
            raise InvalidArgument(
                f"{what} is of process {self._process}, and this is process {os.getpid()}, which was forked from it "
                "and has none of its threads: open the run again in this process"
            )


def at_home(call: Callable[[], object]) -> Callable[[], None]:
    """Return a call that does nothing in a process that is forked from this one."""
    home = Home()

    def guarded() -> None:
        if home.here:
            call()

    return guarded
