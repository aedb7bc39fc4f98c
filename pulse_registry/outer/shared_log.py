"""Shared outer log: the view that the ranks of one member have of the log. The coordinator reads and appends.

It hands the others what is new: so a record costs one request and not one a rank, and all ranks decide by the same
state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pulse_registry.errors import Conflict
from pulse_registry.outer.log import Make, OuterLog
from pulse_registry.outer.snapshot import snapshot_of, state_of
from pulse_registry.outer.state import OuterState
from pulse_registry.peers.peers import COORDINATOR, Peers
from pulse_registry.peers.vote import Attempt
from pulse_schemas.outer import OuterRecord, unseal_outer_record
from pulse_schemas.outer_snapshot import OuterSnapshot

_BETWEEN: Final = b"\n"  # a sealed document, canonical JSON, has none
_STATE, _RECORDS, _WHOLE = b"state", b"records", b"whole"


class HeardLog(OuterLog):
    """An outer log that keeps what it has folded until somebody takes it.

    Attributes:
        heard: sealed records, in order.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        """See ``OuterLog``."""
        super().__init__(*args, **named)
        self.heard: list[bytes] = []

    def fold(self, record: OuterRecord, sealed: bytes) -> None:
        """Fold the record that follows, and keep it; see ``OuterLog.fold``."""
        super().fold(record, sealed)
        self.heard.append(sealed)


class SharedOuterLog:
    """The outer log of a member whose model is sharded; see ``OuterLog``. Each method is a collective."""

    def __init__(self, log: HeardLog, peers: Peers) -> None:
        """Take this rank's log, which reads and writes at the coordinator alone, and the ranks; no I/O yet."""
        self._log, self._peers = log, peers
        self._opened = False

    @property
    def state(self) -> OuterState:
        """The fold of all that was read: the same on all ranks."""
        return self._log.state

    def new_id(self) -> str:
        """Return a write id, the same on all ranks."""
        here = self._peers.rank == COORDINATOR
        return self._peers.broadcast(self._log.new_id().encode() if here else None, "write id").decode()

    def refresh(self) -> OuterState:
        """Read what is new; see ``OuterLog.refresh``.

        Raises:
            PulseError: on all ranks, what the log or the store said. What was read before it is kept, by all.
        """
        self._together(self._log.refresh)
        return self.state

    def fold_whole(self) -> OuterState:
        """Read the log anew, from its first record on; see ``OuterLog.fold_whole``."""
        self._log.heard = []
        self._together(self._log.fold_whole, whole=True)
        return self.state

    def wait(self, poll_s: float, timeout_s: float, sleep: Callable[[float], object]) -> None:
        """Wait until a record follows, at the coordinator: the others wait for it; see ``OuterLog.wait``."""
        attempt = Attempt(self._peers)
        if self._peers.rank == COORDINATOR:
            attempt.run(lambda: self._log.wait(poll_s, timeout_s, sleep), None)
        attempt.agree("next record")

    def append(self, make: Make, write_id: str | None = None) -> OuterRecord | None:
        """Append a record, which ``make`` makes at the coordinator; see ``OuterLog.append``.

        Raises:
            PulseError: on all ranks, what ``make``, the log or the store said.
        """
        said = self._together(lambda: self._log.append(make, write_id))
        return None if not said else unseal_outer_record(said)

    def _together(self, work: Callable[[], OuterState | OuterRecord | None], *, whole: bool = False) -> bytes:
        """Do something at the coordinator, and fold on all ranks what it has heard; return the record that it gave."""
        attempt, here = Attempt(self._peers), self._peers.rank == COORDINATOR
        record, news = b"", b""
        if here:
            found = attempt.run(work, None)
            if found is not None and not isinstance(found, OuterState):
                record = found.seal()
            news = self._news(whole=whole)
        news = self._peers.broadcast(news if here else None, "outer records")
        record = self._peers.broadcast(record if here else None, "outer record")
        if not here:
            attempt.run(lambda: self._take(news), None)
        attempt.agree("outer log")
        return record

    def _news(self, *, whole: bool) -> bytes:
        """Return what the others have not been told of: records, or once, what the log was opened with."""
        heard, self._log.heard = self._log.heard, []
        if whole or self._opened:
            self._opened = True
            return _BETWEEN.join([_WHOLE if whole else _RECORDS, *heard])
        snapshot = snapshot_of(self.state)
        if snapshot is None:
            return _RECORDS
        self._opened = True
        return _BETWEEN.join([_STATE, snapshot.seal()])

    def _take(self, news: bytes) -> None:
        kind, *sealed = news.split(_BETWEEN)
        if kind == _STATE:
            self._log.state = state_of(OuterSnapshot.unseal(sealed[0]))
            return
        if kind == _WHOLE:
            self._log.state = OuterState(self.state.run, whole=True)
        for one in sealed:
            record = unseal_outer_record(one)
            if record.seq != self.state.seq + 1:
                raise Conflict(f"rank {COORDINATOR} handed over outer record {record.seq}, after {self.state.seq}")
            self._log.fold(record, one)
        self._log.heard = []  # nobody takes it from here
