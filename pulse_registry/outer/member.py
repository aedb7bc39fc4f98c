"""A member: one trainer that works in rounds with others it never talks to; the log between them decides.

collect -> gate -> code -> put -> record -> settle; then await the round -> fetch -> decode -> step -> store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pulse_kernels.protocol import OuterRates
from pulse_registry.errors import Diverged, Fenced, InvalidArgument, NotFound
from pulse_registry.outer.contributions import Contributions, Sent
from pulse_registry.outer.exponents import chosen
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.masters import Masters
from pulse_registry.outer.mean import GroupLevels
from pulse_registry.outer.state import ClosedRound, OuterState
from pulse_registry.outer.weights import OuterWeights
from pulse_schemas.outer import (
    MOST_MEMBERS,
    CloseRecord,
    ContributeRecord,
    JoinRecord,
    LeaveRecord,
    OuterRecord,
    StartRecord,
)


@dataclass(frozen=True, slots=True)
class Contributed:
    """What became of a member's part of a round.

    Attributes:
        round: that it was for.
        counts: whether it is in; else it came too late, and goes out, whole, with the next one.
        entries, nbytes: levels that were sent, and their bytes.
    """

    round: int
    counts: bool
    entries: int
    nbytes: int


class Member:
    """Not thread-safe. A process that dies is one that is late; its name may join again.

    Attributes:
        round: the newest round whose outer step its weights have made.
    """

    def __init__(
        self,
        name: str,
        log: OuterLog,
        contributions: Contributions,
        weights: OuterWeights,
        *,
        grace_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            name: of the member, its own among all.
            log: of the run's outer rounds.
            contributions: in the store.
            weights: those of the version that the rounds start from, or of whatever round ``at`` says.
            grace_s: seconds from a round's quorum on after which this member closes it without the late.
            clock: monotonic, in seconds; never compared with another machine's.
        """
        self.name, self.round = name, 0
        self._log, self._contributions, self._weights = log, contributions, weights
        self._grace_s, self._clock = grace_s, clock
        self._term: str | None = None
        self._attempt: tuple[ContributeRecord, Sent] | None = None
        self._contributed: Contributed | None = None
        self._collected: int | None = None  # the round for which the residual has what the weights moved
        self._quorum_at: tuple[int, float] | None = None
        self._base: str | None = None  # digest of the weights, when their step was made
        self._leaving: str | None = None

    def join(self, start: Callable[[dict[str, Any]], StartRecord]) -> OuterState:
        """Begin a term, and make all outer steps that others have made.

        Args:
            start: makes record 0, where there is none; an existing one must say the same.

        Raises:
            InvalidArgument: the rounds were started with other settings.
            StoreUnavailable: call again.
        """
        self._log.append(lambda state, common: None if state.start else start(common))
        state = self._log.refresh()
        self._check_start(state, start)
        term = self._term or self._log.new_id()
        self._term = term
        self._log.append(lambda _, common: JoinRecord(**common, member=self.name), term)
        if self.name not in self._log.state.members:
            raise InvalidArgument(f"run {state.run!r} has {MOST_MEMBERS} members: let one leave first")
        self.catch_up()
        return self._log.state

    def contribute(self, masters: Masters, steps: int) -> Contributed:
        """Send this member's part of the open round; call again after StoreUnavailable, with the same weights.

        A round takes one part of each member: another call for it changes nothing, and returns the same.

        Args:
            masters: the weights after the inner steps.
            steps: how many there were.

        Raises:
            Fenced: another process joined under this name.
            Diverged: something has changed the weights that all hold; nothing was sent.
            InvalidModel: the pseudo-gradient is not finite, or far too large; nothing was sent.
            StoreUnavailable: it may be in the log, or land yet.
        """
        round_ = self.round + 1
        if self._contributed is not None and self._contributed.round == round_:
            return self._contributed
        if self._collected != round_:
            self._weights.collect(masters)
            self._collected = round_
        if self._attempt is None:
            state = self._log.refresh()
            self._check_term(state)
            if state.open != round_ or self.name in state.contributions:  # nothing is put that nobody would read
                self._contributed = Contributed(round_, counts=False, entries=0, nbytes=0)
                return self._contributed
            self._attempt = self._coded(round_, steps)
        record, _ = self._attempt

        def wanted(state: OuterState, common: dict[str, Any]) -> OuterRecord | None:
            self._check_term(state)
            if state.open != round_ or self.name in state.contributions:
                return None
            return record.model_copy(update=common)

        self._log.append(wanted, record.write_id)
        counts, nbytes = self._settle(), 0 if record.object is None else record.object.size
        self._contributed = Contributed(round_, counts, record.entries, nbytes)
        return self._contributed

    def poll(self) -> bool:
        """Look whether the round that comes next has ended, and end it if it is time; tell whether it has.

        Raises:
            Fenced: another process joined under this name.
            StoreUnavailable: call again.
        """
        state = self._log.refresh()
        self._check_term(state)
        if state.open > self.round + 1:
            return True
        if not state.has_quorum():
            return False
        if self._quorum_at is None or self._quorum_at[0] != state.open:
            self._quorum_at = state.open, self._clock()
        if self._clock() - self._quorum_at[1] < self._grace_s:
            return False
        self._close(state.open)
        return self._log.state.open > self.round + 1

    def grace_left(self) -> float:
        """Return for how many seconds this member need not look at a round that nobody adds to; infinite: for ever."""
        if self._quorum_at is None or self._quorum_at[0] != self._log.state.open:
            return float("inf")
        return max(0.0, self._quorum_at[1] + self._grace_s - self._clock())

    def catch_up(self) -> list[ClosedRound]:
        """Make the outer steps of all rounds that have ended, and return these rounds.

        Raises:
            CorruptObject, BaseMismatch, NotFound: a contribution can't be read; the weights are those of ``round``.
            StoreUnavailable: call again.
        """
        done = []
        while self.round + 1 < self._log.state.open:
            closed = self._log.state.ended(self.round + 1)
            if closed is None:
                raise NotFound(f"round {self.round + 1} of run {self._log.state.run!r} is behind two checkpoints")
            if self._attempt is not None:  # whose answer was lost, and nobody asked again
                self._settle()
            self._step(closed)
            self.round, self._base = closed.number, self._weights.digest().hex()
            done.append(closed)
        return done

    @property
    def closed(self) -> ClosedRound | None:
        """The newest round whose outer step its weights have made; None before round 1."""
        return self._log.state.ended(self.round)

    def leave(self) -> None:
        """End the term: nobody waits for this member.

        Raises:
            StoreUnavailable: call again.
        """
        if (term := self._term) is None:
            return
        self._leaving = self._leaving or self._log.new_id()

        def wanted(state: OuterState, common: dict[str, Any]) -> OuterRecord | None:
            return LeaveRecord(**common, member=self.name, term=term) if state.holds_term(self.name, term) else None

        self._log.append(wanted, self._leaving)
        self._term = None

    def waits_for(self) -> str:
        """Return in words whom the open round waits for."""
        state = self._log.state
        who = ", ".join(sorted(state.late())) or "others to join"
        return (
            f"round {state.open} waits for {who}; it has {len(state.contributions)} contributions, and needs "
            f"{_started(state).quorum}"
        )

    def _coded(self, round_: int, steps: int) -> tuple[ContributeRecord, Sent]:
        """Gate, code and put what goes into a round; its record is made, but for where it comes in the log."""
        state, weights = self._log.state, self._weights
        start = _started(state)
        gate = weights.measured(start.gain)
        exponent = chosen(gate.count, gate.square, state.middle)
        sent = weights.gated(start.gain, exponent, 1)
        base, entries = weights.digest().hex(), sum(len(part.index) for _, part in sent)
        if self._base not in (None, base):
            raise Diverged(
                f"round {round_}: something has changed the weights that member {self.name!r} and all others hold, "
                f"since their step was made: their digest was {self._base}, and is {base}. Begin again from the newest "
                "version"
            )
        stored = None
        if entries:
            stored = self._contributions.put(weights, sent, base, round_, self.name, exponent)
        record = ContributeRecord(
            run=state.run,
            seq=1,  # this, and the next two, are those of its place in the log
            previous="0" * 64,
            created_at=start.created_at,
            write_id=self._log.new_id(),
            round=round_,
            member=self.name,
            term=self._held_term(),
            base=base,
            steps=steps,
            exponent=exponent,
            entries=entries,
            object=stored,
        )
        return record, sent

    def _step(self, closed: ClosedRound) -> None:
        """Fetch and decode all contributions of a round, then make its outer step: until then nothing is changed."""
        start, parts = _started(self._log.state), dict[int, list[GroupLevels]]()
        exponents = []
        for record in closed.contributions.values():
            weight = record.steps if start.weighting == "steps" else 1
            for group, part in self._contributions.get(self._weights, record, weight):
                parts.setdefault(group.number, []).append(part)
                exponents.append(part.exponent)
        rates = OuterRates(closed.rates.rate, closed.rates.momentum)
        self._weights.step(parts, min(exponents, default=0), _weight(closed, start), rates)

    def _close(self, number: int) -> None:
        def wanted(state: OuterState, common: dict[str, Any]) -> OuterRecord | None:
            return CloseRecord(**common, round=number) if state.open == number and state.has_quorum() else None

        self._log.append(wanted)

    def _settle(self) -> bool:
        """Take from the residual what was sent, if its record counts; tell whether it does."""
        if self._attempt is None:
            return False
        record, sent = self._attempt
        counts = self._log.state.counts(self.name, record.write_id)
        self._attempt = None
        if counts:
            self._weights.settle(sent)
        return counts

    def _held_term(self) -> str:
        if self._term is None:
            raise InvalidArgument(f"member {self.name!r} has not joined, or has left")
        return self._term

    def _check_term(self, state: OuterState) -> None:
        if not state.holds_term(self.name, self._held_term()):
            raise Fenced(f"another process has joined run {state.run!r} as {self.name!r}: names are one process's each")

    def _check_start(self, state: OuterState, start: Callable[[dict[str, Any]], StartRecord]) -> None:
        found = _started(state)
        common = {name: getattr(found, name) for name in ("run", "seq", "write_id", "previous", "created_at")}
        mine = start(common)
        for name in ("version", "layout", "digest", "rates", "gain", "values", "quorum", "patience", "weighting"):
            if getattr(mine, name) != getattr(found, name):
                raise InvalidArgument(
                    f"the rounds of run {state.run!r} were started with {name} {getattr(found, name)}, and not with "
                    f"{getattr(mine, name)}: all members give the same"
                )


def _started(state: OuterState) -> StartRecord:
    if state.start is None:
        raise InvalidArgument(f"run {state.run!r} has no outer rounds: join first")
    return state.start


def _weight(closed: ClosedRound, start: StartRecord) -> int:
    """Return the weight of all members of a round: what the late have not sent comes later, whole."""
    if start.weighting == "equal":
        return len(closed.members)
    late = len(closed.members) - len(closed.contributions)
    return sum(record.steps for record in closed.contributions.values()) + late * closed.rates.inner_steps
