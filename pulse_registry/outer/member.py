"""A member: one trainer that works in rounds with others it never talks to; the log between them decides.

collect -> gate -> code -> put -> record -> settle; then await the round -> fetch -> decode -> step -> store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from pulse_kernels.protocol import OuterRates
from pulse_registry.errors import Diverged, Fenced, InvalidArgument, NotFound, QuorumLost, StoreUnavailable
from pulse_registry.format.contribution import LARGEST
from pulse_registry.outer.checkpointing import Checkpointing
from pulse_registry.outer.contributions import Contributions
from pulse_registry.outer.exponents import WINDOW, chosen
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.masters import Masters
from pulse_registry.outer.options import rates_of
from pulse_registry.outer.round_parts import round_parts
from pulse_registry.outer.shared_log import SharedOuterLog
from pulse_registry.outer.state import ClosedRound, OuterState
from pulse_registry.outer.weights import OuterWeights, Sent
from pulse_schemas.heads import ContributionHead
from pulse_schemas.outer import (
    MOST_STEPS,
    CloseRecord,
    ContributeRecord,
    JoinRecord,
    LeaveRecord,
    OuterRecord,
    Rates,
    RatesRecord,
    StartRecord,
)


@dataclass(frozen=True, slots=True)
class Contributed:
    """What became of a member's part of a round.

    Attributes:
        round: that it was for.
        steps: inner steps that it is of.
        counts: whether it is in; else it came too late, and goes out, whole, with the next one.
        entries, nbytes: levels that were sent, and their bytes.
    """

    round: int
    steps: int
    counts: bool
    entries: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """A contribution that is on its way: it may be in the log, or not.

    Attributes:
        record: of it.
        steps: inner steps that it is of.
        sent: levels, or values.
    """

    record: ContributeRecord
    steps: int
    sent: Sent

    def became(self, counts: bool) -> Contributed:
        """Return what became of it."""
        record, stored = self.record, self.record.object
        return Contributed(record.round, self.steps, counts, record.entries, 0 if stored is None else stored.size)


class Member:
    """Not thread-safe. A process that dies is one that is late; its name may join again.

    Attributes:
        round: the newest round whose outer step its weights have made.
        log, contributions, checkpointing: through which it takes part.
        attempt: its contribution, while it is not known whether that counts.
        newest: what became of its newest contribution; None: it has made none.
        sent: write id of the newest contribution that counts and that its residual is without: of its own term, or of
            those before it; empty: there is none.
        lost: whether its weights are of no round, since the store failed while it came to a checkpoint.
        digest: of the weights, as they were when that step was made; empty before any was, and before it joins.
        closed: that round, which the log's state may keep no longer; None before round 1.
        beginning: write id of the record by which the rounds of its weights began; empty before it joins.
    """

    def __init__(
        self,
        name: str,
        log: OuterLog | SharedOuterLog,
        contributions: Contributions,
        weights: OuterWeights,
        *,
        grace_s: float,
        silence_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        checkpointing: Checkpointing | None = None,
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            name: of the member, its own among all.
            log: of the run's outer rounds.
            contributions: in the store.
            weights: those of the version that the rounds start from, or of whatever round ``at`` says.
            grace_s: seconds from a round's quorum on after which this member closes it without the late.
            silence_s: seconds without a record after which a round without its quorum is given up; None: never.
            clock: monotonic, in seconds; never compared with another machine's.
            checkpointing: its share in checkpoints; None: it has none, and can't catch up with rounds behind two.
        """
        self.name, self.round = name, 0
        self.digest = self.beginning = ""
        self.closed: ClosedRound | None = None
        self.log, self.contributions, self._weights = log, contributions, weights
        self._grace_s, self._silence_s, self._clock = grace_s, silence_s, clock
        self._heard: tuple[int, float] | None = None  # the newest record, and when it was first waited behind
        self.attempt: Attempt | None = None
        self.newest: Contributed | None = None
        self.sent = ""
        self._term: str | None = None
        self._joined = False  # its term may only be on its way
        self._quorum_at: tuple[int, float] | None = None
        self._leaving: str | None = None
        self._had_left = dict[str, str]()  # terms that had ended before its own began
        self._short_at: float | None = None
        self.checkpointing, self.lost = checkpointing, False

    @property
    def state(self) -> OuterState:
        """The fold of the log, as far as it was read."""
        return self.log.state

    @property
    def contributed(self) -> Contributed | None:
        """Its part of the round after ``round``; None: it has made none, or it is not known what became of it."""
        return self.newest if self.newest is not None and self.newest.round == self.round + 1 else None

    @property
    def has_ended(self) -> bool:
        """Whether the round after ``round`` has ended, as far as the log was read."""
        return self.log.state.open > self.round + 1

    @property
    def inner_steps(self) -> int:
        """Inner steps of the round that this member works for."""
        return self.log.state.rates_of(self.round + 1).inner_steps

    def join(self, start: Callable[[dict[str, Any]], StartRecord]) -> OuterState:
        """Begin a term, and make all outer steps that others have made.

        Args:
            start: makes record 0, where there is none; an existing one must say the same.

        Raises:
            InvalidArgument: the rounds were started with other settings.
            StoreUnavailable: call again.
        """
        self.log.append(lambda state, common: None if state.start else start(common))
        state = self.log.refresh()
        self._check_start(state, start)
        self.digest, self.closed = self._weights.digest().hex(), self.log.state.ended(self.round)
        self.beginning = self.beginning or _started(state).write_id
        self.catch_up()  # before anybody waits for this one
        term = self._term or self.log.new_id()
        self._term = term
        self.log.append(self._joins, term)
        self._joined = True
        joined = self.log.state.members[self.name]
        self.sent = joined.newest or "" if joined.term == term else ""
        self.catch_up()
        self._had_left = self.log.state.left()
        return self.log.state

    def contribute(self, masters: Masters, steps: int) -> Contributed:
        """Send this member's part of the open round, once; call again after StoreUnavailable.

        What the weights move after they have been looked at is part of the next round.

        Args:
            masters: the weights after the inner steps.
            steps: how many there were.

        Raises:
            Fenced: another process joined under this name, or the run has moved elsewhere.
            Diverged: something has changed the weights that all hold; nothing was sent.
            InvalidModel: the pseudo-gradient is not finite, or far too large; nothing was sent, nor kept.
            StoreUnavailable: it may be in the log, or land yet.
        """
        if self.lost:
            raise InvalidArgument(f"the weights of member {self.name!r} are of no round yet: call apply again")
        round_ = self.round + 1
        self._follow()
        if self.contributed is not None:
            return self.contributed
        self._check_term(self.log.state)
        if self.attempt is None:
            start, state = _started(self.log.state), self.log.state
            top = state.middle + WINDOW
            self._weights.collect(masters, float(np.ldexp(1.0, 24 + top)) if start.values == "levels" else LARGEST)
            if not self._wanted(state, round_):
                self.newest = Contributed(round_, steps, False, 0, 0)
                return self.newest
            self.attempt = self._coded(round_, steps)
        attempt = self.attempt

        def wanted(state: OuterState, common: dict[str, Any]) -> OuterRecord | None:
            self._check_term(state)
            return attempt.record.model_copy(update=common) if self._wanted(state, round_) else None

        self.log.append(wanted, attempt.record.write_id)
        return self._decided(attempt)

    def poll(self) -> bool:
        """Look whether the round that comes next has ended, and end it if it is time; tell whether it has.

        Raises:
            Fenced: another process joined under this name, or the run has moved elsewhere.
            StoreUnavailable: call again.
        """
        state = self._follow()
        self._check_term(state)
        if self.has_ended:
            return True
        if not state.has_quorum():
            return False
        if self._quorum_at is None or self._quorum_at[0] != state.open:
            self._quorum_at = state.open, self._clock()
        if self._clock() - self._quorum_at[1] < self._grace_s:
            return False
        self._close(state.open)
        return self.has_ended

    def check_quorum(self) -> None:
        """See that enough members are left for the open round to end.

        Who has not joined yet is waited for, and for so long as its grace, who has left and may come back. Who has died
        can't be told from who is slow: that is what the silence is for.

        Raises:
            QuorumLost: others have left since it joined, and no others have come; or nobody has said anything for as
                long as its silence.
        """
        state = self.log.state
        self._check_silence(state)
        gone = {name for name, term in state.left().items() if self._had_left.get(name) != term}
        if not gone or state.can_end():
            self._short_at = None
            return
        self._short_at = self._clock() if self._short_at is None else self._short_at
        if self._clock() - self._short_at >= self._grace_s:
            raise QuorumLost(
                f"{self.waits_for()}; {', '.join(sorted(gone))} left. Start another member, and call "
                "finish again; or keep what state_dict returns, and leave"
            )

    def _check_silence(self, state: OuterState) -> None:
        if self._heard is None or self._heard[0] != state.seq:
            self._heard = state.seq, self._clock()
        if self._silence_s is None or state.has_quorum() or self._clock() - self._heard[1] < self._silence_s:
            return
        self._heard = None
        raise QuorumLost(
            f"{self.waits_for()}; nobody has said anything for {self._silence_s:g} seconds. Call finish again to wait "
            "as long once more; or keep what state_dict returns, and leave"
        )

    def grace_left(self) -> float:
        """Return for how many seconds this member need not look at a round that nobody adds to; infinite: for ever."""
        state, due = self.log.state, float("inf")
        if self._silence_s is not None and self._heard is not None and not state.has_quorum():
            due = self._heard[1] + self._silence_s
        if self._short_at is not None:
            due = min(due, self._short_at + self._grace_s)
        elif self._quorum_at is not None and self._quorum_at[0] == state.open:
            due = min(due, self._quorum_at[1] + self._grace_s)
        return max(0.0, due - self._clock())

    def catch_up(self, until: int | None = None) -> list[ClosedRound]:
        """Make the outer steps of all rounds that have ended, up to ``until``, and return these rounds.

        Raises:
            CorruptObject, BaseMismatch, NotFound: a contribution can't be read; the weights are those of ``round``.
            Diverged: something has changed the weights that all hold.
            Fenced: rounds began anew since this member joined.
            StoreUnavailable: call again.
        """
        done = []
        self._settle()
        if self.digest and self.has_ended and not self.lost:
            self.check_unchanged()  # or a version would be pushed of whatever they have become
        while (replaced := self._are_replaced()) or (self.has_ended and (until is None or self.round < until)):
            if replaced and self._joined:
                self._check_term(self.log.state)  # what it has not sent belongs to the weights of before
            closed = self.log.state.ended(self.round + 1)
            if closed is None or self.lost or replaced:
                done += self._begin_again()
                continue
            try:
                self._step(closed)
            except NotFound:
                # Others may have gone on so far meanwhile that what leads there was deleted.
                if self.log.refresh().ended(closed.number) is not None:
                    raise
                continue
            self.round, self.digest, self.closed = closed.number, self._weights.digest().hex(), closed
            done.append(closed)
        if self.checkpointing is not None:
            with suppress(StoreUnavailable):  # the steps are made; of checkpoints another is due again
                self.checkpointing.settle(self.log, self.round)
        return done

    def change(self, round_: int, inner_steps: int | None, lr: float | None, momentum: float | None) -> Rates:
        """Let rounds from one on be of other rates; None: as they were. Any member may say so, and all may say it.

        Returns:
            The rates of that round.

        Raises:
            InvalidArgument: that round has begun, or a rate is out of range.
            StoreUnavailable: call again.
        """

        def changed(state: OuterState) -> Rates:
            before = state.rates_of(round_)
            return rates_of(
                before.inner_steps if inner_steps is None else inner_steps,
                before.rate if lr is None else lr,
                before.momentum if momentum is None else momentum,
            )

        def wanted(state: OuterState, common: dict[str, Any]) -> OuterRecord | None:
            rates = changed(state)
            if rates == state.rates_of(round_):
                return None
            if round_ <= state.open:
                raise InvalidArgument(f"round {round_} has begun; change a later one, from {state.open + 1} on")
            return RatesRecord(**common, round=round_, rates=rates)

        if round_ < 1:
            raise InvalidArgument(f"rounds are numbered from 1, and {round_} is none")
        self.log.append(wanted)
        return self.log.state.rates_of(round_)

    def check_unchanged(self) -> None:
        """See that the weights are those that the last step has made.

        Raises:
            Diverged: something else has changed them.
        """
        found = self._weights.digest().hex()
        if found != self.digest:
            raise Diverged(
                f"round {self.round}: something has changed the weights that member {self.name!r} and all others hold, "
                f"since their step was made: their digest was {self.digest}, and is {found}. Begin again from the "
                "newest version"
            )

    def leave(self) -> None:
        """End the term: nobody waits for this member.

        Raises:
            StoreUnavailable: call again.
        """
        if (term := self._term) is None:
            return
        self._leaving = self._leaving or self.log.new_id()

        def wanted(state: OuterState, common: dict[str, Any]) -> OuterRecord | None:
            return LeaveRecord(**common, member=self.name, term=term) if state.holds_term(self.name, term) else None

        if self.checkpointing is not None:
            self.checkpointing.settle(self.log, self.round, wait=True)
        self.log.append(wanted, self._leaving)
        self._term = None
        if self.checkpointing is not None:
            self.checkpointing.close()

    def waits_for(self) -> str:
        """Return in words whom the open round waits for."""
        state = self.log.state
        who = ", ".join(sorted(state.late())) or "others to join"
        return (
            f"round {state.open} waits for {who}; it has {len(state.contributions)} contributions, and needs "
            f"{_started(state).quorum}"
        )

    def _joins(self, state: OuterState, common: dict[str, Any]) -> JoinRecord:
        record = JoinRecord(**common, member=self.name)
        if (full := state.void(record)) is not None:
            raise InvalidArgument(f"run {state.run!r}: {full}: let one leave first")
        return record

    def _follow(self) -> OuterState:
        """Read the log; what became of an attempt may be in it."""
        state = self.log.refresh()
        self._settle()
        return state

    def _settle(self) -> None:
        """Take from the residual what was sent, if it is in the log; if its round ended without it, it stays."""
        attempt, state = self.attempt, self.log.state
        if attempt is not None and (state.counts(self.name, attempt.record.write_id) or self.has_ended):
            self._decided(attempt)

    def _decided(self, attempt: Attempt) -> Contributed:
        counts = self.log.state.counts(self.name, attempt.record.write_id)
        if counts:
            self._weights.settle(attempt.sent)
            self.sent = attempt.record.write_id
        self.attempt, self.newest = None, attempt.became(counts)
        return self.newest

    def _wanted(self, state: OuterState, round_: int) -> bool:
        return state.open == round_ and self.name not in state.contributions

    def _coded(self, round_: int, steps: int) -> Attempt:
        """Gate, code and put what goes into a round; its record is made, but for where it comes in the log."""
        state, weights = self.log.state, self._weights
        start = _started(state)
        if start.values == "levels":
            gate = weights.measured(start.gain)
            exponent = chosen(gate.count, gate.square, start.gain, state.middle)
            sent = weights.gated(start.gain, exponent, 1)
        else:
            exponent, sent = state.middle, weights.passed(start.gain, 1)
        self.check_unchanged()
        head = ContributionHead(
            layout=weights.geometry.id,
            base=self.digest,
            round=round_,
            member=self.name,
            values=start.values,
            exponent=exponent,
            changed=0,
            groups=0,
        )
        entries, stored = self.contributions.put(weights, sent, head)
        record = ContributeRecord(
            run=state.run,
            seq=1,  # this, and the next two, are those of its place in the log
            previous="0" * 64,
            created_at=start.created_at,
            write_id=self.log.new_id(),
            round=round_,
            member=self.name,
            term=self._held_term(),
            base=self.digest,
            steps=min(steps, MOST_STEPS),
            exponent=exponent,
            entries=entries,
            object=stored,
        )
        return Attempt(record, steps, sent)

    def _are_replaced(self) -> bool:
        """Tell whether rounds began anew since, from other weights than these; the round may have the same number."""
        state = self.log.state
        return self.beginning not in ("", state.beginning.write_id) and self.round <= state.begun

    def _begin_again(self) -> list[ClosedRound]:
        """Come to a checkpoint, where the rounds that come next are not to be read any more."""
        if self.checkpointing is None:
            raise NotFound(f"round {self.round + 1} of run {self.log.state.run!r} is behind two checkpoints")
        self.checkpointing.before_step()
        self.lost, self.round = True, 0
        self.round = self.checkpointing.begin(self.log, self._weights)
        self.lost, self.digest = False, self._weights.digest().hex()
        self.beginning = self.log.state.beginning.write_id
        self.closed = self.log.state.ended(self.round)
        return [] if self.closed is None else [self.closed]

    def _step(self, closed: ClosedRound) -> None:
        """Fetch and decode what a round is made of, then make its outer step: until then nothing is changed."""
        state, start = self.log.state, _started(self.log.state)
        parts, exponent = round_parts(self.contributions, self._weights, state, closed, start)
        rates = OuterRates(closed.rates.rate, closed.rates.momentum)
        if self.checkpointing is not None:
            self.checkpointing.before_step()
        self._weights.step(parts, exponent, _weight(closed, start), rates)
        if self.checkpointing is not None:
            self.checkpointing.stepped(self.log.state, closed, self._weights)

    def _close(self, number: int) -> None:
        def wanted(state: OuterState, common: dict[str, Any]) -> OuterRecord | None:
            return CloseRecord(**common, round=number) if state.open == number and state.has_quorum() else None

        self.log.append(wanted)

    def _held_term(self) -> str:
        if self._term is None:
            raise InvalidArgument(f"member {self.name!r} has not joined, or has left")
        return self._term

    def _check_term(self, state: OuterState) -> None:
        home, restart = state.home, state.restart
        if state.left().get(self.name) == self._held_term():
            if restart is not None and (home is None or home.seq < restart.seq):
                raise Fenced(
                    f"the outer rounds of run {state.run!r} began anew, from version "
                    f"{_started(state).version + restart.round}: join them again, as {self.name!r}"
                )
            if home is not None:
                raise Fenced(f"run {state.run!r} has moved to {home.to}: join its rounds there, as {self.name!r}")
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
