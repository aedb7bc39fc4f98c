"""The registry beside a plain model: a list of states, and for every worker the bytes that it should hold.

Two trainers take the run over from one another, crash and come back; the store fails before and after it acts; workers
go from any version to any other, stage, apply, undo and discard. After every step the log is read from the store.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pulse_registry.errors import BaseMismatch, Fenced, InvalidArgument, LayoutMismatch, StoreUnavailable
from pulse_registry.pull.apply import Staged
from pulse_registry.registry import Registry
from pulse_registry.store import FileStore, Store
from pulse_registry.store.keys import TEMP_PREFIX
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import FaultAction
from tests.support.groups import small_groups
from tests.support.records import DictStore
from tests.support.registries import (
    Bits,
    Model,
    Outage,
    bits,
    check_store,
    commits,
    copy_of,
    failing,
    garbage,
    quick,
    settle,
    small_model,
    state_of,
)

Trouble = tuple[int, FaultAction, bool, str | None]
FAULTS: st.SearchStrategy[Trouble | None] = st.one_of(
    st.none(),
    st.tuples(
        st.integers(1, 6), st.sampled_from(["fail_before", "fail_after"]), st.booleans(), st.sampled_from([None, "put"])
    ),
)
ACTIONS = st.sampled_from(["none", "few", "few", "few", "many", "all", "back", "layout"])


@dataclass
class Trainer:
    """One writer: its way to the store, its registry, and whether another one has begun a term since."""

    network: FaultStore
    outage: Outage
    registry: Registry
    began: bool = False
    fenced: bool = False


@dataclass
class Worker:
    """One reader's weights; ``version`` is what they should be known to hold."""

    outage: Outage
    registry: Registry
    weights: Model
    version: int | None = None
    staged: list[tuple[Staged, int | None]] = field(default_factory=list)

    def leave(self) -> None:
        """Give back what is staged and the threads."""
        for staged, _ in self.staged:
            staged.discard()
        self.registry.close()


class Registries(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.groups = small_groups(32)
        self.groups.__enter__()
        self.store = self.new_store()
        self.live = small_model()
        self.steps: dict[int, Model] = {}  # all that was ever tried, by step
        self.history: list[int] = []  # the steps of the versions, in order
        self.told: dict[int, int] = {}  # what was acknowledged: version -> step
        self.refused: set[int] = set()  # steps that were refused for good
        self.orphans: set[str] = set()
        self.excused = False  # whether something failed in this step, so that it may have left orphans
        self.trainers = [self.new_trainer(), self.new_trainer()]
        self.workers = [self.new_worker(), self.new_worker()]

    def new_store(self) -> Store:
        return DictStore()

    def new_trainer(self) -> Trainer:
        network, outage = failing(self.store)
        return Trainer(network, outage, quick(network, keyframe_every=3, keyframe_share=1e9))

    def new_worker(self) -> Worker:
        network, outage = failing(self.store)
        return Worker(outage, quick(network), garbage(self.live))

    def teardown(self) -> None:
        self.check_everything()
        for trainer in self.trainers:
            trainer.registry.close()
        for worker in self.workers:
            worker.leave()
        self.groups.__exit__(None, None, None)

    @initialize(seed=st.integers(0, 2**32 - 1), versions=st.lists(ACTIONS, max_size=6))
    def begin(self, seed: int, versions: list[str]) -> None:
        self.rng = np.random.default_rng(seed)
        for action in versions:
            self.push(0, action, None, [])

    # -- trainers --------------------------------------------------------------------------------------------------

    def train(self, action: str) -> None:
        """Change the live weights."""
        if action == "layout":
            self.live = copy_of(self.live)
            if "x.extra" in self.live:
                del self.live["x.extra"]
            else:
                self.live["x.extra"] = self.rng.integers(0, 9, 7, dtype=np.int16)
        elif action == "back" and self.history:
            self.live = copy_of(self.steps[self.history[int(self.rng.integers(len(self.history)))]])
        share = {"few": 0.05, "many": 0.4, "all": 1.0}.get(action, 0.0)
        for array in self.live.values():
            flat = array.reshape(-1).view(f"u{array.itemsize}")
            at = np.flatnonzero(self.rng.random(flat.size) < share)
            flat[at] = np.frombuffer(self.rng.bytes(len(at) * array.itemsize), flat.dtype)

    @rule(who=st.integers(0, 1), action=ACTIONS, fault=FAULTS, more=st.lists(ACTIONS, max_size=2))
    def push(self, who: int, action: str, fault: Trouble | None, more: list[str]) -> None:
        """Push once, or several times in a row without waiting."""
        trainer = self.trainers[who]
        if fault is not None:
            trainer.outage.arm(fault[0], fault[1], lasting=fault[2], only=fault[3])
        futures: list[tuple[int, Callable[[], Any]]] = []
        tried = []
        for turn in [action, *more]:
            self.train(turn)
            step = len(self.steps)
            self.steps[step] = copy_of(self.live)
            tried.append(step)
            wait = not more
            try:
                if wait:
                    result = trainer.registry.push(step, self.live)
                    futures.append((step, lambda result=result: result))
                else:
                    futures.append((step, trainer.registry.push(step, self.live, wait=False).result))
            except (StoreUnavailable, Fenced) as error:
                self.failed(trainer, step, error)
        for step, result_of in futures:
            try:
                result = result_of()
            except (StoreUnavailable, Fenced) as error:
                self.failed(trainer, step, error)
            else:
                assert result.step == step
                self.told[result.version] = step
        settle(trainer.registry)
        self.excused |= trainer.outage.heal()
        trainer.began |= trainer.registry._runtime.publisher._writer.epoch is not None  # type: ignore[union-attr]
        landed = [record.step for record in commits(self.store)][len(self.history) :]
        assert landed == sorted(set(landed) & set(tried)), "only what was tried lands, in order"
        self.history += landed
        if landed:
            other = self.trainers[1 - who]
            other.fenced |= other.began

    def failed(self, trainer: Trainer, step: int, error: Exception) -> None:
        self.excused = True
        if isinstance(error, Fenced):
            assert state_of(self.store).epoch > trainer.registry._runtime.publisher._writer.epoch  # type: ignore
            self.refused.add(step)
        else:
            assert trainer.outage.fired, "it fails only if the store does"

    @rule(who=st.integers(0, 1), action=ACTIONS)
    def go_on(self, who: int, action: str) -> None:
        """Push with nothing in the way."""
        self.push(who, action, None, [])

    @rule(who=st.integers(0, 1))
    def crash(self, who: int) -> None:
        """Lose a trainer without a word, and start it anew."""
        self.trainers[who] = self.new_trainer()

    # -- workers ---------------------------------------------------------------------------------------------------

    def same_layout(self, worker: Worker, version: int) -> bool:
        return set(worker.weights) == set(self.steps[self.history[version]])

    @rule(
        who=st.integers(0, 1),
        where=st.integers(0, 1000),
        how=st.sampled_from(["pull", "pull", "replace", "stage"]),
        fault=FAULTS,
    )
    def pull(self, who: int, where: int, how: str, fault: Trouble | None) -> None:
        """Go to any version; half of the time to the newest."""
        if not self.history:
            return
        worker = self.workers[who]
        version = min(where // 2, len(self.history) - 1) if where % 2 else where // 2 % len(self.history)
        was = bits(worker.weights)
        if fault is not None:
            worker.outage.arm(fault[0], fault[1], lasting=fault[2])
        try:
            staged = worker.registry.stage(version, into=worker.weights, replace=how == "replace")
        except StoreUnavailable:
            assert worker.outage.heal()
            assert bits(worker.weights) == was
            return
        except LayoutMismatch:
            worker.outage.heal()
            assert not self.same_layout(worker, version)
            assert bits(worker.weights) == was
            return
        worker.outage.heal()
        assert bits(worker.weights) == was, "staging changes nothing"
        if how == "stage":
            worker.staged.append((staged, worker.version))
            return
        with staged:
            assert staged.apply().version == version
        worker.version = version

    @rule(who=st.integers(0, 1), where=st.integers(0, 1000))
    def follow(self, who: int, where: int) -> None:
        """Pull with nothing in the way."""
        self.pull(who, where, "pull", None)

    @rule(who=st.integers(0, 1), what=st.sampled_from(["apply", "apply and undo", "undo", "discard"]))
    def use_staged(self, who: int, what: str) -> None:
        """Apply what was staged some time ago, unless the weights have moved since."""
        worker = self.workers[who]
        if not worker.staged:
            return
        staged, base = worker.staged.pop(0)
        was = bits(worker.weights)
        if what == "undo":
            staged.undo()  # not applied: nothing to do
            assert bits(worker.weights) == was
        if what in ("apply", "apply and undo"):
            if worker.version != base:
                with pytest.raises(BaseMismatch):
                    staged.apply()
                assert bits(worker.weights) == was
            else:
                staged.apply()
                worker.version = staged.version
                assert bits(worker.weights) == self.of(staged.version)
                staged.apply()
                if what == "apply and undo":
                    try:
                        staged.undo()
                    except InvalidArgument:
                        assert bits(worker.weights) == self.of(staged.version)
                        assert staged.route.base is None
                    else:
                        worker.version = base
                        assert bits(worker.weights) == was
        staged.discard()
        with pytest.raises(InvalidArgument):
            staged.apply()

    @rule(
        who=st.integers(0, 1),
        wheres=st.tuples(*[st.integers(0, 1000)] * 3),
        moved=st.booleans(),
        what=st.sampled_from(["apply", "apply and undo"]),
    )
    def change_of_mind(self, who: int, wheres: tuple[int, int, int], moved: bool, what: str) -> None:
        """Be at one version, stage another one, perhaps go to a third one meanwhile, and then use what was staged."""
        self.pull(who, wheres[0], "pull", None)
        self.pull(who, wheres[1], "stage", None)
        if moved:
            self.pull(who, wheres[2], "pull", None)
        while self.workers[who].staged:
            self.use_staged(who, what)

    @rule(who=st.integers(0, 1))
    def join_late(self, who: int) -> None:
        """A worker goes away, and another one comes with the newest layout and nothing in its weights."""
        self.workers[who].leave()
        self.workers[who] = self.new_worker()

    @rule(who=st.integers(0, 1))
    def reopen(self, who: int) -> None:
        """A worker's process forgets what its weights hold; a full pass tells it."""
        worker = self.workers[who]
        worker.leave()
        network, outage = failing(self.store)
        worker.outage, worker.registry, worker.staged = outage, quick(network), []
        version, worker.version = worker.version, None
        if version is not None:
            worker.registry.verify(version, model=worker.weights)
            worker.version = version

    @rule(where=st.integers(0, 1000))
    def verify(self, where: int) -> None:
        """The stored objects of a version are whole."""
        if self.history:
            version = where % len(self.history)
            assert self.trainers[0].registry.verify(version).step == self.history[version]

    # -- what is always true ---------------------------------------------------------------------------------------

    def of(self, version: int) -> Bits:
        return bits(self.steps[self.history[version]])

    def restore(self, registry: Registry, version: int) -> None:
        into = garbage(self.steps[self.history[version]])
        registry.pull(version, into=into)
        assert bits(into) == self.of(version)

    def check_everything(self) -> None:
        for version in range(len(self.history)):
            with quick(self.store) as reader:
                self.restore(reader, version)

    @invariant()
    def the_history_is_linear_and_holds_what_was_promised(self) -> None:
        records = commits(self.store)
        assert [record.version for record in records] == list(range(len(records)))
        assert [record.step for record in records] == self.history
        assert {version: self.history[version] for version in self.told} == self.told
        assert not self.refused & set(self.history), "what was refused has had no effect"

    @invariant()
    def the_newest_version_can_be_had_by_anyone(self) -> None:
        if self.history:
            with quick(self.store) as reader:
                self.restore(reader, len(self.history) - 1)

    @invariant()
    def workers_hold_what_they_think_they_hold(self) -> None:
        for worker in self.workers:
            if worker.version is not None:
                assert bits(worker.weights) == self.of(worker.version)

    @invariant()
    def the_store_holds_what_the_log_names_and_nothing_else_but_orphans_of_failures(self) -> None:
        orphans = check_store(self.store)
        assert orphans == self.orphans or self.excused, "only what failed leaves objects that no record names"
        assert self.orphans <= orphans, "an orphan is never named"
        self.orphans, self.excused = orphans, False


class RegistriesOnDisk(Registries):
    """The same over files, whose keyframes are mapped where they lie."""

    def new_store(self) -> Store:
        self.folder = tempfile.TemporaryDirectory()
        return FileStore(self.folder.name)

    def teardown(self) -> None:
        super().teardown()
        left = [path for path in Path(self.folder.name).rglob("*") if path.name.startswith(TEMP_PREFIX)]
        self.folder.cleanup()
        assert not left, "no half-written file stays behind"


TestRegistries = pytest.mark.slow(Registries.TestCase)
TestRegistries.settings = settings(max_examples=5, stateful_step_count=40, deadline=None)
TestRegistriesOnDisk = RegistriesOnDisk.TestCase
TestRegistriesOnDisk.settings = settings(max_examples=5, stateful_step_count=30, deadline=None)


@pytest.mark.sweep
class TestManyRegistries(Registries.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=500, stateful_step_count=60, deadline=None)
