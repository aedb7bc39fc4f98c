"""The state of an outer log: rounds, members, and which contributions count. No I/O.

It is the only place where a record of that log gets its meaning. Create-if-absent orders the records, and their order
alone decides: no leader, no lease, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from pulse_registry.errors import CorruptObject
from pulse_registry.outer.exponents import WINDOW, middle
from pulse_schemas.outer import (
    MOST_MEMBERS,
    CloseRecord,
    ContributeRecord,
    JoinRecord,
    LeaveRecord,
    OuterRecord,
    Rates,
    RatesRecord,
    StartRecord,
)


@dataclass(slots=True)
class Membership:
    """A member's newest term.

    Attributes:
        term: write id of its `JoinRecord`.
        since: the first round that waits for it.
        missed: closed rounds, one after the other, to which it has not contributed.
        left: whether it has ended its term.
    """

    term: str
    since: int
    missed: int = 0
    left: bool = False


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """A round that has ended.

    Attributes:
        number: of the round.
        rates: of its outer step.
        contributions: that count, by member, in the order of the log.
        members: that it was of: those that it waited for, and those that contributed. A mean is over them all, since
            what one has not sent yet comes later, whole.
        seq: of the record that ended it.
    """

    number: int
    rates: Rates
    contributions: Mapping[str, ContributeRecord]
    members: frozenset[str]
    seq: int


@dataclass(slots=True)
class OuterState:
    """The fold of an outer log up to ``seq``; empty (``seq == -1``) before record 0.

    Attributes:
        run: the run's name.
        seq, last: number of the newest record, and BLAKE3 of its sealed bytes.
        start: record 0.
        members: all that have ever joined, by name.
        closed: the rounds that have ended, round 1 first.
        contributions: to the open round, by member.
        middle: the exponent about which those of the open round's lie.
    """

    run: str
    seq: int = -1
    last: str | None = None
    start: StartRecord | None = None
    members: dict[str, Membership] = field(default_factory=dict)
    closed: list[ClosedRound] = field(default_factory=list)
    contributions: dict[str, ContributeRecord] = field(default_factory=dict)
    middle: int = 0
    _rates: dict[int, Rates] = field(default_factory=dict)  # by the first round that they are of

    def copy(self) -> OuterState:
        """Return a state that says the same, and stays as it is when this one goes on."""
        copied = replace(self, members={name: replace(one) for name, one in self.members.items()})
        for one in fields(self):
            if one.name != "members" and isinstance(value := getattr(self, one.name), dict | list):
                setattr(copied, one.name, value.copy())
        return copied

    @property
    def open(self) -> int:
        """Number of the open round."""
        return len(self.closed) + 1

    @property
    def rates(self) -> Rates:
        """The rates of the open round."""
        return self._rates[max(first for first in self._rates if first <= self.open)]

    def awaited(self) -> frozenset[str]:
        """Return the members that the open round waits for, those that have contributed included."""
        start = self._started()
        return frozenset(
            name
            for name, one in self.members.items()
            if not one.left and one.since <= self.open and one.missed < start.patience
        )

    def late(self) -> frozenset[str]:
        """Return the members that the open round still waits for."""
        return self.awaited() - self.contributions.keys()

    def has_quorum(self) -> bool:
        """Tell whether the open round may be closed."""
        return len(self.contributions) >= self._started().quorum

    def holds_term(self, member: str, term: str) -> bool:
        """Tell whether a term is a member's newest one, and not ended."""
        one = self.members.get(member)
        return one is not None and one.term == term and not one.left

    def advance(self, record: OuterRecord, sealed_hash: str) -> str | None:
        """Fold the next record, in place.

        Args:
            record: the next one.
            sealed_hash: BLAKE3 (hex) of its sealed bytes.

        Returns:
            None; or in words why it counts for nothing, though it takes its place in the log: others were faster.

        Raises:
            CorruptObject: it breaks a rule of the log; the state is unchanged.
        """
        wrong = self._violation(record)
        if wrong is not None:
            raise CorruptObject(f"run {self.run!r}: outer record {record.seq} is not valid: {wrong}")
        void = self.void(record)
        if void is None:
            self._apply(record)
        self.seq, self.last = record.seq, sealed_hash
        if void is None and self._is_complete():
            self._close()
        return void

    def void(self, record: OuterRecord) -> str | None:
        """Return in words why a record that follows counts for nothing; None if it counts."""
        match record:
            case ContributeRecord():
                return self._void_contribution(record)
            case CloseRecord() if record.round != self.open:
                return f"round {record.round} is not open; round {self.open} is"
            case CloseRecord() if not self.has_quorum():
                return f"round {record.round} has {len(self.contributions)} contributions, and no quorum"
            case LeaveRecord() if not self.holds_term(record.member, record.term):
                return f"another term of {record.member!r} has begun, or it has left"
            case RatesRecord() if record.round <= self.open:
                return f"round {record.round} has begun"
            case JoinRecord() if record.member not in self.members and self._present() >= MOST_MEMBERS:
                return f"the run has {MOST_MEMBERS} members"
        return None

    def _void_contribution(self, record: ContributeRecord) -> str | None:
        if not self.holds_term(record.member, record.term):
            return f"another term of {record.member!r} has begun, or it has left"
        if record.round != self.open:
            return f"round {record.round} is not open; round {self.open} is"
        if record.member in self.contributions:
            return f"{record.member!r} has contributed to round {record.round} before"
        if abs(record.exponent - self.middle) > WINDOW:
            return f"its exponent is {record.exponent}, and those of round {record.round} are about {self.middle}"
        first = next(iter(self.contributions.values()), None)
        base = self._started().digest if self.open == 1 else None if first is None else first.base
        if base is not None and record.base != base:
            return f"it was made from other weights than round {record.round} is of"
        return None

    def _violation(self, record: OuterRecord) -> str | None:
        """Return in words the rule that a record breaks as the next one, or None."""
        if record.run != self.run:
            return f"it belongs to run {record.run!r}, not to {self.run!r}"
        if record.seq != self.seq + 1:
            return f"it says it is record {record.seq}, where record {self.seq + 1} belongs"
        if record.previous != self.last:
            return f"it follows a record with hash {record.previous}, but record {self.seq} has {self.last}"
        if isinstance(record, StartRecord) != (self.seq == -1):
            return "exactly record 0 starts the log"
        return None

    def _apply(self, record: OuterRecord) -> None:
        match record:
            case StartRecord():
                self.start, self._rates, self.middle = record, {1: record.rates}, record.exponent
            case JoinRecord():
                # Nobody is there before the first round has ended: who joins until then is waited for at once.
                since = 1 if not self.closed else self.open + 1
                self.members[record.member] = Membership(record.write_id, since)
            case ContributeRecord():
                self.contributions[record.member] = record
                self.members[record.member].missed = 0
            case LeaveRecord():
                self.members[record.member].left = True
            case RatesRecord():
                self._rates[record.round] = record.rates
            case CloseRecord():
                self._close()

    def _is_complete(self) -> bool:
        """Tell whether all have contributed whom the open round waits for: then it ends by itself."""
        return self.start is not None and bool(self.contributions) and self.has_quorum() and not self.late()

    def _close(self) -> None:
        awaited = self.awaited()
        members = awaited | self.contributions.keys()
        for name in awaited - self.contributions.keys():
            self.members[name].missed += 1
        self.middle = middle((one.exponent for one in self.contributions.values() if one.entries), self.middle)
        self.closed.append(ClosedRound(self.open, self.rates, dict(self.contributions), members, self.seq))
        self.contributions.clear()

    def _present(self) -> int:
        return sum(not one.left for one in self.members.values())

    def _started(self) -> StartRecord:
        if self.start is None:
            raise ValueError("the outer log is empty")
        return self.start
