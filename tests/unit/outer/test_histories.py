"""Histories of members who are late, early, void, lost and back: nothing is lost or sent twice, and all hold the same.

Each cell's mass is counted in exact integers, in units of the least float32 number.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import StoreUnavailable
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.masters import Masters
from pulse_registry.outer.mean import GroupLevels
from pulse_registry.outer.session import OuterSession
from pulse_registry.outer.weights import Sent
from pulse_registry.testing import Fault, FaultStore
from tests.support.sampling import examples
from tests.unit.outer.sessions import GEOMETRY, Arrays, Site, drawn, flat, train

Floats = npt.NDArray[np.float32]
Exact = npt.NDArray[Any]  # of Python's integers
LEAST = 149
MEMBERS = ("a", "b", "c")
HAPPENS = (
    "train",
    "contribute",
    "contribute",
    "follow",
    "follow",
    "wait",
    "lose",
    "cut",
    "drop",
    "save",
    "restore",
    "restart",
)
EVERY = (
    "rounds",
    "in time",
    "too late",
    "late",
    "restored",
    "dropped",
    "kept",
    "on its way",
    "fail_before",
    "fail_after",
)
ACTIONS = st.lists(st.tuples(st.sampled_from(HAPPENS), st.sampled_from(MEMBERS)), min_size=30, max_size=60)
RULES = st.fixed_dictionaries(
    {
        "weighting": st.sampled_from(["equal", "steps"]),
        "gain": st.sampled_from([1.0, 7.0, None]),
        "quorum": st.integers(1, 3),
        "patience": st.integers(1, 3),
    }
)


def exact(values: Floats) -> Exact:
    fraction, exponent = np.frexp(values)
    whole = (fraction.astype(np.float64) * 2**24).astype(np.int64).astype(object)
    shift = exponent - 24 + LEAST
    return np.array([n << s if s >= 0 else n >> -s for n, s in zip(whole, shift.tolist(), strict=True)], object)


def nothing() -> Exact:
    return np.array([0] * GEOMETRY.cells, object)


def mass(sent: Sent) -> Exact:
    total = nothing()
    for group, part in sent:
        if isinstance(part, GroupLevels):
            cells = np.array([n << (part.exponent + LEAST) for n in part.levels.tolist()], object)
        else:
            cells = exact(part.values)
        total[part.index.astype(np.int64) + group.start] += cells
    return total


class Account:
    """What one member has learnt.

    Attributes:
        total: the exact sum of its pseudo-gradients, and of the rounding of each sum with them, but for what was lost
            with a process.
        saved: its state, what it had learnt until then (also: if what was on its way counts), and which contributions
            counted then.
    """

    def __init__(self) -> None:
        self.total = nothing()
        self.saved: tuple[dict[str, Any], tuple[Exact, Exact], set[str]] | None = None


class History:
    """Members at one store, their accounts, and all that was ever sent."""

    def __init__(self, values: str, rules: dict[str, Any]) -> None:
        self.site, self.seen, self._rules = Site(), Counter[str](), {"values": values, **rules}
        self.sent = dict[str, Sent]()  # by key of the object
        self.plain = dict[str, Floats]()  # what it was made of, by the same
        self.accounts = {name: Account() for name in MEMBERS}
        self.armed = dict[str, str]()
        self.models = dict[str, Arrays]()
        self.sessions = dict[str, OuterSession]()
        self.origins = dict[str, Floats]()  # where each model was when it was last looked at, or given weights
        self._seed, self.log = 0, OuterLog(self.site.store, "run", whole=True)
        for name in MEMBERS:
            self.begin(name, None)

    def begin(self, name: str, saved: dict[str, Any] | None) -> None:
        """Let a member's process begin anew; the elder one is gone."""
        self.armed.pop(name, None)
        self.models[name] = drawn()
        store = FaultStore(self.site.store, [self._fault(name, action) for action in ("fail_before", "fail_after")])
        session = self.site.session(self.models[name], name, store, grace_s=60.0, **self._rules)
        if saved is not None:
            session.load_state_dict(saved)
        session.join()
        self.sessions[name], self.origins[name] = session, flat(self.models[name]).copy()
        self._watch(name, session)

    def act(self, what: str, name: str) -> None:
        session, account = self.sessions[name], self.accounts[name]
        self._seed += 1
        match what:
            case "train":
                train(self.models[name], self._seed, 1e-4 if self._seed % 3 else 1e-6)
            case "contribute":
                self._contribute(name)
            case "follow":
                self._follow(name)
            case "wait":
                self.site.clock.now += 61.0
            case "lose":
                self.armed[name] = "fail_before" if self._seed % 2 else "fail_after"
            case "cut":  # while a contribution is on its way
                self.armed[name] = "fail_before log/" if self._seed % 2 else "fail_after log/"
                self._contribute(name)
                self._save(name)
            case "drop":
                session.reset()
                self.origins[name] = flat(self.models[name]).copy()
            case "save":
                self._save(name)
            case "restart":
                self.begin(name, None)
                account.total = self.folded(name)  # what it had not sent is lost with it
            case "restore" if account.saved is not None:
                saved, (learnt, landed), known = account.saved
                self.begin(name, saved)
                if self.counted(name).keys() - known - {saved["attempt"]}:  # it has sent since
                    assert not self.sessions[name].weights.residual.any()
                    account.total = self.folded(name)
                    self.seen["dropped"] += 1
                else:
                    account.total = landed if saved["attempt"] in self.counted(name) else learnt
                    self.seen["restored"] += 1
        self.check(name)

    def _contribute(self, name: str) -> None:
        train(self.models[name], self._seed, 1e-5)
        with contextlib.suppress(StoreUnavailable):
            self.seen["in time" if self.sessions[name].contribute(1 + self._seed % 4).counts else "too late"] += 1

    def _follow(self, name: str) -> bool:
        """Let a member make the steps of what has ended; its model keeps what it has moved since it contributed."""
        session, before, origin = self.sessions[name], flat(self.models[name]).copy(), self.origins[name]
        with contextlib.suppress(StoreUnavailable):
            if session.member.poll():
                session.apply()
                theta = session.weights.theta
                kept = self.origins[name] is origin  # else the model was looked at just now
                wanted = theta - (origin - before) if kept else theta
                assert flat(self.models[name]).tobytes() == wanted.tobytes()
                self.origins[name] = theta.copy()
                self.seen["kept"] += int(kept and bool((origin != before).any()))
                return True
        return False

    def _save(self, name: str) -> None:
        session, account = self.sessions[name], self.accounts[name]
        saved, weights = session.state_dict(), session.weights
        whole = np.asarray(saved["residual"])
        assert whole.tobytes() == (weights.residual + (self.origins[name] - flat(self.models[name]))).tobytes()
        learnt = account.total + exact(whole) - exact(weights.residual)
        landed, attempt = learnt, session.member.attempt
        if attempt is not None:  # what the model has moved is rounded otherwise, if that was taken first
            rest = exact(np.asarray(saved["rest"]))
            landed = account.total + rest - exact(weights.residual) + mass(attempt.sent)
        account.saved = saved, (learnt, landed), set(self.counted(name))
        self.seen["on its way"] += saved["attempt"] != ""

    def check(self, name: str) -> None:
        """Assert that all that a member has learnt was sent or is in its residual: no more, no less."""
        session, sent = self.sessions[name], nothing()
        attempt = session.member.attempt
        if attempt is not None and attempt.record.write_id in self.counted(name):
            sent = mass(attempt.sent)  # it is in the log, and its author does not know yet
        held = self.folded(name) + exact(session.weights.residual) - sent
        assert (held == self.accounts[name].total).all()

    def counted(self, name: str) -> dict[str, str | None]:
        """Return the objects of a member's contributions that count, by write id."""
        state = self.log.refresh()
        rounds = [*(closed.contributions for closed in state.closed), state.contributions]
        mine = [found[name] for found in rounds if name in found]
        return {one.write_id: None if one.object is None else one.object.key for one in mine}

    def folded(self, name: str) -> Exact:
        """Return the sum of all that counts of a member."""
        return sum((mass(self.sent[key]) for key in self.counted(name).values() if key is not None), nothing())

    def finish(self) -> None:
        """Let all see all that there is."""
        self.armed.clear()
        self.site.clock.now += 1000.0
        for _ in range(3):
            for name in MEMBERS:
                while self._follow(name):
                    pass

    def _fault(self, name: str, action: Any) -> Fault:
        def hit(_: str, key: str) -> bool:
            armed, _, where = self.armed.get(name, "").partition(" ")
            found = armed == action and where in key
            if found:
                del self.armed[name]
                self.seen[str(action)] += 1
            return found

        return Fault(action, "put", matches=hit)

    def _watch(self, name: str, session: OuterSession) -> None:
        """Record what a session learns and sends, and compare what it gets with what was sent."""
        weights, objects = session.weights, session.member.contributions
        collect, put, get = weights.collect, objects.put, objects.get

        def collected(masters: Masters, *limit: float) -> None:
            before, origin = weights.residual.copy(), self.origins[name]
            wanted = before + (origin - flat(self.models[name]))
            collect(masters, *limit)
            assert weights.residual.tobytes() == wanted.tobytes()
            moved = exact(origin) - exact(flat(self.models[name]))
            rounding = exact(weights.residual) - exact(before) - moved
            self.origins[name] = flat(self.models[name]).copy()
            self.accounts[name].total = self.accounts[name].total + moved + rounding

        def noted(*given: Any) -> Any:
            entries, stored = put(*given)
            if stored is not None:
                self.sent[stored.key], self.plain[stored.key] = given[1], weights.residual.copy()
            return entries, stored

        def compared(*given: Any) -> Sent:
            found, record = get(*given), given[1]
            if record.object is not None:
                assert (mass(found) == mass(self.sent[record.object.key])).all()
            return found

        weights.collect, objects.put, objects.get = collected, noted, compared  # type: ignore[method-assign]


def play(values: str, actions: list[tuple[str, str]], rules: dict[str, Any]) -> Counter[str]:
    """Let a history happen, and return how often what was seen in it."""
    history = History(values, rules)
    for what, name in actions:
        history.act(what, name)
    history.finish()
    for name in MEMBERS:
        history.check(name)
    held = [session.weights for session in history.sessions.values()]
    assert len({session.round for session in history.sessions.values()}) == 1
    assert len({one.theta.tobytes() for one in held}) == 1
    assert len({one.momentum.tobytes() for one in held}) == 1
    digests = {one.digest().hex() for one in held}
    assert len(digests) == 1
    state, seen = history.log.refresh(), history.seen
    if state.closed:
        assert history.site.versions.digests.get(len(state.closed), min(digests)) in digests
    for closed in state.closed:
        plain = [history.plain[one.object.key] for one in closed.contributions.values() if one.object is not None]
        seen["late"] += len(closed.members) > len(closed.contributions)
        if len(plain) == len(MEMBERS):
            seen["full"] += 1
            one, two, three = (np.float32(1 / 3) * part for part in plain)
            seen["other bits"] += int((one + two + three != two + three + one).sum())
    seen["rounds"] += len(state.closed)
    return seen


def drawn_history(seed: int) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    rng = random.Random(seed)
    actions = [(rng.choice(HAPPENS), rng.choice(MEMBERS)) for _ in range(60)]
    gain = rng.choice([1.0, 7.0, None])
    return actions, {
        "weighting": rng.choice(["equal", "steps"]),
        "gain": gain,
        "quorum": rng.randint(1, 3),
        "patience": 2,
    }


@pytest.mark.slow
@examples(15)
@given(values=st.sampled_from(["levels", "float32"]), actions=ACTIONS, rules=RULES)
def test_whatever_happens_all_is_counted_once_and_all_hold_the_same_bits(
    values: str, actions: list[tuple[str, str]], rules: dict[str, Any]
) -> None:
    play(values, actions, rules)


@pytest.mark.slow
def test_so_it_is_in_long_histories_in_which_all_of_it_happens_and_sums_in_another_order_are_other_bits() -> None:
    seen = Counter[str]()
    for seed in range(24):
        seen.update(play("float32" if seed % 3 == 0 else "levels", *drawn_history(seed)))
    assert min(seen[what] for what in EVERY) > 0, seen
    assert seen["other bits"] > 100  # of plain float32 sums


@pytest.mark.parametrize("kept", [True, False])
def test_the_accounts_see_what_is_sent_again_and_what_is_lost(kept: bool) -> None:
    """The control: a member whose residual keeps what was sent, or loses what was not, is out of balance."""
    history = History("levels", {"weighting": "equal", "gain": 7.0, "quorum": 1, "patience": 3})
    history.act("train", "a")
    weights = history.sessions["a"].weights
    weights.settle = lambda _: None if kept else weights.residual.fill(0)  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        history.act("contribute", "a")
