"""Local peers: the ranks are threads of one process, for tests, the simulator and many ranks on one machine.

What a collective gives, and who is found lost, depends on what the ranks do and not on how their threads are scheduled:
a call that all ranks have made succeeds on all of them, and one that a rank has not made before it left fails on all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Protocol, TypeVar

from pulse_registry.errors import InvalidArgument, PeerLost
from pulse_registry.peers.call import Call, Collective, check_same
from pulse_registry.peers.lost import again, gone, silent, waiting
from pulse_registry.peers.peers import COORDINATOR, TIMEOUT_S, WARNING_S, Bytes

_logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class Wait(Protocol):
    """Waits until something is so, for so many seconds at most, and tells whether it is."""

    def __call__(self, until: Callable[[], bool], seconds: float) -> bool:
        """Wait."""


class LocalGroup:
    """The ranks of one process, and where their calls meet.

    Args:
        size: how many ranks.
        timeout_s: how long a call waits for the other ranks.
        wait: waits; by default on a condition, for time to pass. The simulator lets others act meanwhile, a test says
            that the time is over.
        tell: is told which ranks a call has waited for, for a minute; logs it by default.
    """

    def __init__(
        self,
        size: int,
        *,
        timeout_s: float = TIMEOUT_S,
        wait: Wait | None = None,
        tell: Callable[[str], None] = _logger.warning,
    ) -> None:
        self.size, self.timeout_s = size, timeout_s
        self._wait, self._tell = wait or self._wait_for, tell
        self._changed = Condition()
        self._meetings: dict[int, _Meeting] = {}
        self._left: set[int] = set()
        self._lost: PeerLost | None = None

    def peers(self, rank: int) -> LocalPeers:
        """Return a rank's end."""
        return LocalPeers(self, rank)

    def meet(self, rank: int, call: Call, parts: Sequence[bytes]) -> list[bytes]:
        """Make a rank's call, with a part for each rank, and return what each rank sent to this one.

        Raises:
            InvalidArgument: the ranks did not make the same call.
            PeerLost: a rank left, or did not come in time.
        """
        with self._changed:
            if self._lost is not None:
                raise self._lost_again()
            meeting = self._meetings.setdefault(call.number, _Meeting(self.size))
            meeting.join(rank, call, parts)
            self._look()
            if meeting.complete:
                self._changed.notify_all()

        def over() -> bool:
            return meeting.complete or self._lost is not None

        if not self._wait(over, min(WARNING_S, self.timeout_s)) and self.timeout_s > WARNING_S:
            self._tell(waiting(meeting.missing(), self.size, call.place, WARNING_S, self.timeout_s))
            self._wait(over, self.timeout_s - WARNING_S)
        with self._changed:
            if meeting.complete:
                if meeting.leave():
                    del self._meetings[call.number]
                return meeting.given_to(rank)
            if self._lost is None:
                self._lose(silent(meeting.missing(), self.size, call.place, self.timeout_s))
            raise self._lost_again()

    def leave(self, rank: int) -> None:
        """Take a rank out of the group: calls that it has not made fail for all others."""
        with self._changed:
            self._left.add(rank)
            self._look()

    def _look(self) -> None:
        """Find out whether somebody waits for a rank that has left."""
        if not self._left or self._lost is not None:
            return
        for meeting in self._meetings.values():
            if missing := [rank for rank in meeting.missing() if rank in self._left]:
                self._lose(gone(missing, self.size, meeting.place, "died, or closed the registry"))
                return

    def _lose(self, lost: PeerLost) -> None:
        self._lost = lost
        self._changed.notify_all()

    def _lost_again(self) -> PeerLost:
        """Return the group's end for one more rank to raise: a traceback is of one thread."""
        lost = self._lost
        return PeerLost(str(lost), lost.ranks) if lost is not None else PeerLost("a rank was lost")

    def _wait_for(self, until: Callable[[], bool], seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(until, seconds)


class _Meeting:
    """One call of all ranks, who come and go as they like."""

    def __init__(self, size: int) -> None:
        self._calls: list[Call | None] = [None] * size
        self._parts: list[Sequence[bytes]] = [()] * size
        self._awaited = self._inside = size
        self._first: Call | None = None
        self._alike = True

    @property
    def complete(self) -> bool:
        """Whether all ranks have made it."""
        return not self._awaited

    @property
    def place(self) -> str:
        """The call as messages name it."""
        return self._first.place if self._first is not None else "a call"

    def missing(self) -> list[int]:
        """Return the ranks that have not made it."""
        return [rank for rank, call in enumerate(self._calls) if call is None] if self._awaited else []

    def join(self, rank: int, call: Call, parts: Sequence[bytes]) -> None:
        """Make a rank's call."""
        self._first = self._first or call
        self._alike = self._alike and call == self._first and call.collective is not Collective.REFUSED
        self._calls[rank], self._parts[rank] = call, parts
        self._awaited -= 1

    def leave(self) -> bool:
        """Count a rank that goes, and tell whether it is the last."""
        self._inside -= 1
        return not self._inside

    def given_to(self, rank: int) -> list[bytes]:
        """Return what a rank was sent; raises InvalidArgument where the ranks made other calls."""
        if not self._alike:
            check_same([call for call in self._calls if call is not None])
        return [parts[rank] for parts in self._parts]


class LocalPeers:
    """A rank's end of a `LocalGroup`; see `Peers`."""

    def __init__(self, group: LocalGroup, rank: int) -> None:
        self._group, self._rank = group, rank
        self._calls = 0
        self._lost: PeerLost | None = None
        self._closed = False

    @property
    def rank(self) -> int:
        """Which of the ranks this is."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._group.size

    def all_gather(self, data: Bytes, what: str = "") -> list[bytes]:
        """Return what every rank gave; see `Peers`."""
        return self._call(Collective.ALL_GATHER, [bytes(data)] * self.size, what)

    def gather(self, data: Bytes, what: str = "") -> list[bytes] | None:
        """Return, at the coordinator, what every rank gave; see `Peers`."""
        parts = [b""] * self.size
        parts[COORDINATOR] = bytes(data)
        given = self._call(Collective.GATHER, parts, what)
        return given if self._rank == COORDINATOR else None

    def broadcast(self, data: Bytes | None, what: str = "") -> bytes:
        """Return what the coordinator gave; see `Peers`."""
        if self._rank != COORDINATOR:
            return self._call(Collective.BROADCAST, [b""] * self.size, what)[COORDINATOR]
        if data is None:
            return self._refuse("broadcast has nothing to send at the coordinator")[COORDINATOR]
        return self._call(Collective.BROADCAST, [bytes(data)] * self.size, what)[COORDINATOR]

    def exchange(self, parts: Sequence[Bytes], what: str = "") -> list[memoryview]:
        """Send a part to each rank, and return what each sent to this one; see `Peers`."""
        if len(parts) != self.size:
            given = self._refuse(f"exchange has {len(parts)} parts for {self.size} ranks")
        else:
            given = self._call(Collective.EXCHANGE, [bytes(part) for part in parts], what)
        return [memoryview(part) for part in given]

    def close(self) -> None:
        """Leave the group; see `Peers`."""
        self._closed = True
        self._group.leave(self._rank)

    def _refuse(self, why: str) -> list[bytes]:
        return self._call(Collective.REFUSED, [], why)

    def _call(self, collective: Collective, parts: Sequence[bytes], what: str) -> list[bytes]:
        if self._closed:
            raise InvalidArgument("the peers are closed: open the registry again")
        if self._lost is not None:
            raise again(self._lost)
        self._calls += 1
        try:
            return self._group.meet(self._rank, Call(self._calls, collective, what).fitted(), parts)
        except PeerLost as lost:
            self._lost = lost
            raise


def run_ranks(life: Callable[[LocalPeers], Result], group: LocalGroup) -> list[Future[Result]]:
    """Let each rank of a group live in a thread of its own, and return when all have ended.

    A rank leaves the group when its life ends, however it does.

    Args:
        life: what each rank does.
        group: the ranks.

    Returns:
        What each rank returned, or raised, by rank: all of them are done.
    """
    results: list[Future[Result]] = [Future() for _ in range(group.size)]

    def live(rank: int) -> None:
        peers = group.peers(rank)
        try:
            results[rank].set_result(life(peers))
        except BaseException as error:  # noqa: BLE001 - the thread's edge: whoever looks at the result hears of it
            results[rank].set_exception(error)
        finally:
            peers.close()

    threads = [Thread(target=live, args=(rank,), name=f"rank-{rank}", daemon=True) for rank in range(group.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
