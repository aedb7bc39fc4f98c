"""Mutants of outer rounds: the library with one safeguard taken away, to see that the simulator sees it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pulse_registry.errors import Conflict
from pulse_registry.outer import member
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.member import Attempt, Contributed, Member
from pulse_registry.outer.saved import SavedState
from pulse_registry.outer.state import ClosedRound, OuterState
from pulse_registry.runtime.outer import OuterRun
from pulse_registry.store import PrefixStore
from pulse_schemas.outer import ContributeRecord, OuterRecord, StartRecord
from tests.scenarios.simulator import rounds
from tests.scenarios.simulator.mutants import Mutant
from tests.scenarios.simulator.weather import Weather

MEMBERS = 4
_STALLS, _LOST = Weather(stall=0.01), Weather(lose=0.05, stall=0.002)


def _no_quorum(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(OuterState, "has_quorum", lambda self: True)


def _late_counts(patched: pytest.MonkeyPatch) -> None:
    """Send to a round that has ended, too, and count it."""
    void, apply = OuterState.void, OuterState._apply

    def late(self: OuterState, record: OuterRecord) -> bool:
        return (
            isinstance(record, ContributeRecord)
            and record.round == self.open - 1
            and self.holds_term(record.member, record.term)
            and record.member not in self.closed[-1].contributions
        )

    def applied(self: OuterState, record: OuterRecord) -> None:
        if not late(self, record):
            apply(self, record)
            return
        assert isinstance(record, ContributeRecord)
        last = self.closed[-1]
        self.closed[-1] = dataclasses.replace(last, contributions={**last.contributions, record.member: record})
        self.members[record.member].newest = record.write_id

    patched.setattr(OuterState, "void", lambda self, record: None if late(self, record) else void(self, record))
    patched.setattr(OuterState, "_apply", applied)
    patched.setattr(Member, "_wanted", lambda self, state, round_: round_ >= state.open - 1)


def _no_term(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(OuterState, "holds_term", lambda self, name, term: name in self.members)


def _cleared_early(patched: pytest.MonkeyPatch) -> None:
    """Take what is sent from the residual once it is coded."""
    coded = Member._coded

    def early(self: Member, round_: int, steps: int) -> Attempt:
        attempt = coded(self, round_, steps)
        self._weights.settle(attempt.sent)
        return attempt

    def decided(self: Member, attempt: Attempt) -> Contributed:
        counts = self.log.state.counts(self.name, attempt.record.write_id)
        self.attempt, self.newest = None, attempt.became(counts)
        return self.newest

    patched.setattr(Member, "_coded", early)
    patched.setattr(Member, "_decided", decided)


def _never_settled(patched: pytest.MonkeyPatch) -> None:
    """Forget an attempt whose round has ended, without a look at whether it counts."""

    def forget(self: Member) -> None:
        if self.has_ended:
            self.attempt = None

    patched.setattr(Member, "_settle", forget)


def _restored_anyway(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(SavedState, "unsent", lambda self, newest: self.residual)


def _no_base(patched: pytest.MonkeyPatch) -> None:
    """Work from whatever weights are there, and count what was made from others."""
    void = OuterState._void_contribution

    def unlooked(self: OuterState, record: ContributeRecord) -> str | None:
        first = next(iter(self.contributions.values()), None)
        return void(self, record if first is None else record.model_copy(update={"base": first.base}))

    patched.setattr(OuterState, "_void_contribution", unlooked)
    patched.setattr(rounds, "_FALLS", 0.2)
    patched.setattr(Member, "check_unchanged", lambda self: setattr(self, "digest", self._weights.digest().hex()))


def _no_look(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(Member, "check_unchanged", lambda self: None)
    patched.setattr(rounds, "_FALLS", 0.2)


def _by_those_present(patched: pytest.MonkeyPatch) -> None:
    def weight(closed: ClosedRound, start: StartRecord) -> int:
        return sum(one.steps if start.weighting == "steps" else 1 for one in closed.contributions.values())

    patched.setattr(member, "_weight", weight)


def _no_conditional_put(patched: pytest.MonkeyPatch) -> None:
    real = PrefixStore.put

    def put(self: Any, key: str, data: Any, *, if_absent: bool = False) -> None:
        real(self, key, data, if_absent=if_absent and not (key.startswith("log/") and "outer" in str(self.url)))

    patched.setattr(PrefixStore, "put", put)


def _appended_again(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(OuterLog, "_landed", lambda self, write_id: None)


def _first_come(patched: pytest.MonkeyPatch) -> None:
    """Push without a look at what is there, once one's term has begun."""

    def push(self: OuterRun, version: int, model: Any) -> bool:
        try:
            if self._publisher is None:
                self._publisher = self._runtime.outer_publisher()
            self._publisher.push(version, model, None, None).result()
        except Conflict:
            self.close()
            return False
        return True

    patched.setattr(OuterRun, "_push", push)


ROUNDS_MUTANTS = tuple(
    dataclasses.replace(mutant, members=MEMBERS)
    for mutant in (
        Mutant("quorum", "a round is closed only at its quorum", _no_quorum, Weather(crash=0.004), seed=3),
        Mutant("late", "what comes after its round's end does not count", _late_counts, _STALLS, seed=1),
        Mutant("term", "what a twin's elder sends does not count", _no_term, Weather(crash=0.002, stall=0.005), seed=6),
        Mutant(
            "residual", "what is sent stays in the residual until its record counts", _cleared_early, _STALLS, seed=9
        ),
        Mutant(
            "lost answer", "an attempt without an answer is looked for when its round has ended", _never_settled, _LOST
        ),
        Mutant(
            "restore",
            "what was not sent is restored only if nothing was sent since",
            _restored_anyway,
            Weather(crash=0.004),
            seed=1,
        ),
        Mutant("base", "what was made from other weights does not count", _no_base, Weather(lose=0.001)),
        Mutant("weights", "weights are what they were when their step was made", _no_look, Weather(lose=0.001)),
        Mutant("weight", "a mean is over all members of a round, the late included", _by_those_present, _STALLS),
        Mutant("outer if absent", "outer records are created, never replaced", _no_conditional_put, seed=1),
        Mutant(
            "outer write id", "an outer record whose answer was lost is not written again", _appended_again, _LOST, 21
        ),
        Mutant("first version", "rounds begin with one version, whoever began at once", _first_come, seed=13),
    )
)
