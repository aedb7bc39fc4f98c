"""The state of an outer log: rounds, members, and which contributions count. No I/O.

It is the only place where a record of that log gets its meaning. Create-if-absent orders the records, and their order
alone decides: no leader, no lease, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Final

from pulse_registry.errors import CorruptObject
from pulse_registry.outer.exponents import WINDOW, middle
from pulse_schemas import HomeEntry
from pulse_schemas.outer import (
    MOST_MEMBERS,
    CheckpointRecord,
    CloseRecord,
    ContributeRecord,
    DeleteRoundsRecord,
    JoinRecord,
    LeaveRecord,
    MergedRecord,
    MoveRoundsRecord,
    OuterRecord,
    Rates,
    RatesRecord,
    RestartRecord,
    RetireRoundsRecord,
    StartRecord,
)

_RECORD_BYTES: Final = 450
"""Of a contribution, a checkpoint or totals in a snapshot, without the name of its object."""
_ROW_BYTES: Final = 120
"""Of a member, of rates, of what a round has beside its contributions."""
_NAME_BYTES: Final = 10
"""Of a member among those of a round."""


@dataclass(slots=True)
class Membership:
    """A member's newest term.

    Attributes:
        term: write id of its `JoinRecord`.
        since: the first round that waits for it.
        missed: closed rounds, one after the other, to which it has not contributed.
        left: whether it has ended its term.
        newest: write id of its newest contribution that counts, of any term; None: none does.
        newest_round: the round that it was to.
    """

    term: str
    since: int
    missed: int = 0
    left: bool = False
    newest: str | None = None
    newest_round: int = 0


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
        restart: the record by which rounds began anew last; None: they have not.
        members: all that have ever joined, by name.
        closed: the rounds that have ended after round ``dropped``, in order.
        contributions: to the open round, by member.
        middle: the exponent about which those of the open round's lie.
        whole: keep rounds until they are retired; else only those behind the last checkpoint but one.
        dropped: rounds up to it are not kept here.
        checkpoints: that were not retired, oldest first.
        merged: contributions of a round, added up, by its number; of rounds in ``closed``.
        retired: the round up to which nothing is to be read any more; 0: none.
        retirements: rounds that were retired and whose objects were not deleted yet, with the record that did.
        deleted: the round up to which objects were deleted.
        rates_from: the rates of outer steps, by the first round that they are of.
        home: where the run lives since its last move; None: it has not moved since the rounds began.
    """

    run: str
    seq: int = -1
    last: str | None = None
    start: StartRecord | None = None
    restart: RestartRecord | None = None
    members: dict[str, Membership] = field(default_factory=dict)
    closed: list[ClosedRound] = field(default_factory=list)
    contributions: dict[str, ContributeRecord] = field(default_factory=dict)
    middle: int = 0
    whole: bool = False
    dropped: int = 0
    checkpoints: list[CheckpointRecord] = field(default_factory=list)
    merged: dict[int, MergedRecord] = field(default_factory=dict)
    retired: int = 0
    retirements: dict[int, int] = field(default_factory=dict)
    deleted: int = 0
    rates_from: dict[int, Rates] = field(default_factory=dict)
    home: HomeEntry | None = None

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
        return self.dropped + len(self.closed) + 1

    @property
    def begun(self) -> int:
        """The round after which rounds began: what it came to is a version, and a momentum of 0."""
        return 0 if self.restart is None else self.restart.round

    @property
    def beginning(self) -> StartRecord | RestartRecord:
        """The record by which rounds began, first or anew."""
        return self._started() if self.restart is None else self.restart

    @property
    def spare(self) -> int:
        """The round of the last checkpoint but one: what leads there is behind two checkpoints; or as ``begun``."""
        return self.checkpoints[-2].round if len(self.checkpoints) > 1 else self.begun

    def measure(self) -> int:
        """Return about how many bytes a snapshot of this state has."""
        rounds = [one.contributions for one in self.closed]
        sent = chain(self.contributions.values(), chain.from_iterable(one.values() for one in rounds))
        objects = [one.object for one in sent]
        objects += [one.object for one in self.checkpoints]
        objects += [one.object for one in self.merged.values()]
        named = sum(_RECORD_BYTES + (0 if one is None else len(one.key)) for one in objects)
        rows = len(self.members) + len(self.rates_from) + len(self.retirements) + len(rounds)
        names = sum(map(len, self.members)) + _NAME_BYTES * sum(len(one.members) for one in self.closed)
        return named + _ROW_BYTES * rows + names

    def ended(self, number: int) -> ClosedRound | None:
        """Return a round that has ended; None if it has not, or is not kept here."""
        place = number - self.dropped - 1
        return self.closed[place] if 0 <= place < len(self.closed) else None

    def counts(self, member: str, write_id: str) -> bool:
        """Tell whether a record is a member's newest contribution that counts."""
        return member in self.members and self.members[member].newest == write_id

    def rates_of(self, number: int) -> Rates:
        """Return the rates of a round, as far as the log says."""
        return self.rates_from[max(first for first in self.rates_from if first <= number)]

    @property
    def rates(self) -> Rates:
        """The rates of the open round."""
        return self.rates_of(self.open)

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

    def can_end(self) -> bool:
        """Tell whether the open round has its quorum once all contribute who have not left."""
        there = {name for name, one in self.members.items() if not one.left}
        return len(there | self.contributions.keys()) >= self._started().quorum

    def left(self) -> dict[str, str]:
        """Return the term of each member that has left."""
        return {name: one.term for name, one in self.members.items() if one.left}

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
        wrong = self.violation(record)
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
            case JoinRecord() if not self._is_there(record.member) and self._present() >= MOST_MEMBERS:
                return f"the run has {MOST_MEMBERS} members"
            case CheckpointRecord() | MergedRecord() if record.round >= self.open:
                return f"round {record.round} has not ended"
            case CheckpointRecord() if record.round <= self.begun:
                return f"rounds began anew after round {self.begun}"
            case CheckpointRecord() if self.checkpoints and record.round <= self.checkpoints[-1].round:
                return f"there is a checkpoint of round {self.checkpoints[-1].round}"
            case MergedRecord():
                return self._void_merged(record)
            case RetireRoundsRecord() if record.round <= self.retired:
                return f"round {self.retired} was retired before"
            case RetireRoundsRecord() if all(one.round != record.round for one in self.checkpoints[:-1]):
                return f"no checkpoint is of round {record.round}, or none is newer"
            case DeleteRoundsRecord() if record.round not in self.retirements:
                return f"round {record.round} was not retired, or was deleted before"
            case RestartRecord() if record.round <= self.begun:
                return f"rounds began anew after round {self.begun}"
            case RestartRecord() if record.round < self.open - 1:
                return f"round {self.open - 1} has ended"
        return None

    def _void_merged(self, record: MergedRecord) -> str | None:
        if self._started().values != "levels":
            return "contributions of float32 values are not merged"
        if record.round <= self.spare:
            return f"what leads to round {self.spare} is behind two checkpoints"
        closed = self.ended(record.round)
        exponents = [one.exponent for one in closed.contributions.values() if one.entries] if closed else []
        if record.exponent != min(exponents, default=None):
            return f"its exponent is {record.exponent}, and the least of round {record.round} is another"
        return f"those of round {record.round} are merged" if record.round in self.merged else None

    def _void_contribution(self, record: ContributeRecord) -> str | None:
        if not self.holds_term(record.member, record.term):
            return f"another term of {record.member!r} has begun, or it has left"
        if record.round != self.open:
            return f"round {record.round} is not open; round {self.open} is"
        if record.member in self.contributions:
            return f"{record.member!r} has contributed to round {record.round} before"
        if len(self.contributions) >= MOST_MEMBERS:
            return f"round {record.round} has {MOST_MEMBERS} contributions"
        if abs(record.exponent - self.middle) > WINDOW:
            return f"its exponent is {record.exponent}, and those of round {record.round} are about {self.middle}"
        first = next(iter(self.contributions.values()), None)
        begins = self.open == self.begun + 1
        base = self.beginning.digest if begins else None if first is None else first.base
        if base is not None and record.base != base:
            return f"it was made from other weights than round {record.round} is of"
        return None

    def violation(self, record: OuterRecord) -> str | None:
        """Return in words the rule that a record breaks as the next one, whoever it is of; None if it breaks none."""
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
                self.start, self.rates_from, self.middle = record, {1: record.rates}, record.exponent
            case JoinRecord():
                # Nobody is there before the first round has ended: who joins until then is waited for at once.
                since = self.open if self.open == self.begun + 1 else self.open + 1
                before = self.members.get(record.member)
                newest = (None, 0) if before is None else (before.newest, before.newest_round)
                self.members[record.member] = Membership(record.write_id, since, 0, False, *newest)
            case ContributeRecord():
                self.contributions[record.member] = record
                member = self.members[record.member]
                member.missed, member.newest, member.newest_round = 0, record.write_id, record.round
            case LeaveRecord():
                self.members[record.member].left = True
            case MoveRoundsRecord():
                self.home = HomeEntry(move=record.write_id, to=record.to, seq=record.seq)
                self._end_terms()  # who goes on joins again, at the new home
            case RestartRecord():
                self.restart, self.checkpoints = record, []
                self.retired = record.round
                self.retirements[record.round] = record.seq
                self._drop(record.round)
                self.contributions.clear()
                self._end_terms()
            case RatesRecord():
                self.rates_from[record.round] = record.rates
            case CloseRecord():
                self._close()
            case CheckpointRecord():
                self.checkpoints.append(record)
                if not self.whole:
                    self._drop(self.spare)
            case MergedRecord():
                self.merged[record.round] = record
            case RetireRoundsRecord():
                self.retired = record.round
                self.retirements[record.round] = record.seq
                self.checkpoints = [one for one in self.checkpoints if one.round >= record.round]
                self._drop(record.round)
            case DeleteRoundsRecord():
                self.deleted = record.round
                self.retirements = {round_: seq for round_, seq in self.retirements.items() if round_ > record.round}

    def _end_terms(self) -> None:
        """Let all members have left."""
        for member in self.members.values():
            member.left = True

    def _drop(self, number: int) -> None:
        """Keep no rounds up to one."""
        if number > self.dropped:
            del self.closed[: number - self.dropped]
            self.dropped = number
            self.merged = {round_: record for round_, record in self.merged.items() if round_ > number}

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

    def _is_there(self, member: str) -> bool:
        return member in self.members and not self.members[member].left

    def _present(self) -> int:
        return sum(not one.left for one in self.members.values())

    def _started(self) -> StartRecord:
        if self.start is None:
            raise ValueError("the outer log is empty")
        return self.start
