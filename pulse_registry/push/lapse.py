"""Lapse: which pushes of a rank a failure took along, as all ranks agree on it.

Pushes are diffed ahead of their turn, on one rank further than on another. When one fails, what was diffed after it on
any rank fails with it on all: each rank tells how far it has come. So a push that was diffed after the failure on one
rank was so on all. (A flag that each rank sets for itself can take turns between two ranks for ever.)
"""

from __future__ import annotations

import struct
import threading
from typing import Final

from pulse_registry.errors import PulseError
from pulse_registry.peers.peers import Peers
from pulse_registry.push.failure import taken_along

_COUNT: Final = struct.Struct("<Q?")


class Lapse:
    """Counts a rank's pushes, and knows which of them are gone. Its owner's lock is held, but where it is said."""

    def __init__(self, peers: Peers, lock: threading.RLock) -> None:
        """Begin with no push.

        Args:
            peers: the ranks.
            lock: of the publisher.
        """
        self._peers = peers
        self._settled = threading.Condition(lock)
        self._count = 0
        self._last: int | None = 0  # number of the last push that a failure took along; None: the ranks agree on it
        self._why: BaseException | None = None

    @property
    def count(self) -> int:
        """How many pushes this rank has begun."""
        return self._count

    def begin(self) -> int:
        """Begin a push, and return its number, from 1 on: the same on all ranks."""
        self._count += 1
        return self._count

    def wait(self) -> None:
        """Wait while the ranks agree on what a failure took along."""
        self._settled.wait_for(lambda: self._last is not None)

    def took(self, number: int) -> bool:
        """Tell whether a failure has taken a push along. Needs no lock."""
        return number <= (self._last or 0)

    def error(self, step: int) -> PulseError:
        """Return the error of a push that was taken along. Needs no lock."""
        return taken_along(step, self._why)

    def open(self, error: BaseException) -> int:
        """Take note of a failure, until ``close``; return how many pushes this rank has begun."""
        self._why, self._last = error, None
        return self._count

    def agree(self, count: int, *, anew: bool) -> tuple[int, bool]:
        """Agree on the last push that is gone, and on whether all begin anew; a collective, without the lock.

        Args:
            count: how many pushes this rank has begun.
            anew: whether this rank has to make its shadow anew.
        """
        try:
            every = [_COUNT.unpack(said) for said in self._peers.all_gather(_COUNT.pack(count, anew), "failure")]
        except PulseError as error:
            self._why = error  # nobody to go on with, which those that were taken along are told
            return count, True
        return max(said for said, _ in every), any(said for _, said in every)

    def close(self, last: int) -> None:
        """Let pushes go on after the last one that is gone."""
        self._last = last
        self._settled.notify_all()
