"""A trainer dies, or its store fails, at any of its calls of the store: the others go on, and so does it.

Its calls are those of five rounds in which it contributes last, ends the round, pushes the version, and writes a
checkpoint: put, record, lost answer, close, fold, step, version and its steps, checkpoint and its.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from pulse_registry.errors import Diverged, StoreUnavailable
from pulse_registry.testing import Fault, FaultStore
from pulse_registry.testing.fault import FaultAction
from tests.support.parties import Party, Trainer, same
from tests.support.sampling import EVERY_CALL, places, slow_but

_WATCHED = 5


class Died(BaseException):
    """The process dies here."""


@dataclass
class Victim:
    """The trainer that fails, once it is to; who is dead reaches nothing any more.

    Attributes:
        at: which of its calls from then on fails, counted from 1; 0: none.
        calls: that it has made since.
    """

    at: int = 0
    action: FaultAction = "fail_before"
    error: type[BaseException] = StoreUnavailable
    armed: bool = False
    calls: list[tuple[str, str]] = field(default_factory=list)

    def fires(self, verb: Any, key: str) -> bool:
        if not self.armed:
            return False
        self.calls.append((verb, key))
        return len(self.calls) == self.at or (self.error is Died and 0 < self.at < len(self.calls))

    def begin(self) -> tuple[Party, list[Trainer]]:
        """Let three trainers join, of which the first one is the victim."""
        party = Party(quorum=2, grace=60.0)
        fault = Fault(self.action, matches=self.fires, error=lambda verb, key: self.error(f"{verb} of {key}"))
        trainers = [
            party.trainer("a", 1, FaultStore(party.store, [fault])),
            party.trainer("b", 2),
            party.trainer("c", 3),
        ]
        for one in trainers:
            one.outer.join()
        return party, trainers

    def work(self, trainers: list[Trainer]) -> None:
        """Let them work for some rounds; the victim comes last in each, and goes on where its store has failed."""
        self.armed, victim = True, trainers[0]
        for _ in range(_WATCHED):
            for one in trainers[1:]:
                one.contribute()
            victim.train()
            try:
                victim.outer.step()
            except StoreUnavailable:
                victim.outer.finish()
            for one in trainers[1:]:
                one.follow()
        self.armed = False


def three_more(trainers: list[Trainer]) -> None:
    """Let some work for three rounds more, and see that they end, with all of them in."""
    for _ in range(3):
        for one in trainers:
            one.contribute()
        for one in trainers:
            result = one.follow()
            assert result.counts
            assert len(result.members) == len(trainers)
        same(*trainers)


def clean() -> tuple[list[tuple[str, str]], list[Trainer]]:
    """Return the calls of whom nothing happens to, and the trainers."""
    victim = Victim()
    _, trainers = victim.begin()
    victim.work(trainers)
    return victim.calls, trainers


def test_the_calls_are_those_of_all_that_a_round_does() -> None:
    keys = {key for verb, key in clean()[0] if verb == "put"}
    for part in ("outer/objects/contribution/", "outer/log/", "objects/patch/", "log/0", "outer/objects/checkpoint/"):
        assert any(part in key for key in keys), part


@pytest.mark.slow
@EVERY_CALL
@pytest.mark.parametrize("action", slow_but(["fail_after"], ["fail_before", "fail_after"]))
def test_where_the_store_fails_once_all_ends_with_the_bits_of_no_failure(action: FaultAction, every: bool) -> None:
    calls, unharmed = clean()
    three_more(unharmed)
    for at in places(calls, every):
        victim = Victim(at, action)
        _, trainers = victim.begin()
        victim.work(trainers)
        three_more(trainers)
        for one, other in zip(trainers, unharmed, strict=True):
            assert one.model["w"].tobytes() == other.model["w"].tobytes(), victim.calls[at - 1]
            mine, theirs = one.outer.weights, other.outer.weights
            assert mine.residual.tobytes() == theirs.residual.tobytes(), victim.calls[at - 1]


@pytest.mark.slow
@EVERY_CALL
@pytest.mark.parametrize("action", slow_but(["fail_after"], ["fail_before", "fail_after"]))
def test_where_a_trainer_dies_the_next_round_closes_and_it_comes_back(action: FaultAction, every: bool) -> None:
    calls = clean()[0]
    for at in places(calls, every):
        victim = Victim(at, action, Died)
        party, trainers = victim.begin()
        with suppress(Died):  # a publisher's thread may die alone, after the last round
            victim.work(trainers)
        if len(victim.calls) < at:  # whose keyframes, which a thread commits, come after the look at their version
            assert len(calls) - at < sum("objects/keyframe/" in key for _, key in calls)
            continue
        others = trainers[1:]
        for one in others:  # the round at which it died, whether its part is in or not
            if one.outer.member.contributed is None and one.outer.round == one.outer.applied:
                one.outer.contribute()
        for one in others:
            if one.outer.member.contributed is not None:
                one.follow()
        same(*others)
        before = others[0].outer.round
        for _ in range(2):
            for one in others:
                one.contribute()
            for one in others:
                one.follow()
        same(*others)
        assert others[0].outer.round == before + 2, victim.calls[at - 1]
        back = party.trainer("a", 4)
        back.outer.join()
        same(back, *others)
        three_more([back, *others])
        for one in (back, *others):
            one.outer.leave()
        assert back.outer.last is not None
        assert len(back.registry.versions()) == back.outer.last.round + 1


def test_a_version_that_somebody_else_pushed_meanwhile_is_found() -> None:
    """By all members, before they contribute to the next round: it is not what they hold."""
    party = Party(quorum=2, grace=60.0)
    trainers = party.joined("ab")
    for one in trainers:
        one.contribute()
    outsider = party.trainer("x", 9)
    outsider.model["w"] += 1.0
    outsider.registry.push(1, outsider.model)
    for one in trainers:
        with pytest.raises(Diverged, match="round 1: version 1 has digest"):
            one.follow()
        with pytest.raises(Diverged, match="round 1: version 1 has digest"):
            one.outer.contribute()
