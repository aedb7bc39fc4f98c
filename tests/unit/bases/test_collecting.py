"""References go when the log has retired the base; a base goes when no run refers to it, and never before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from pulse_registry.bases.collector import BaseCollector
from pulse_registry.bases.content import base_id
from pulse_registry.bases.sharing import close, refer
from pulse_registry.errors import Conflict, InvalidArgument, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.log import LogReader, LogWriter
from pulse_registry.retention import RetentionPolicy
from pulse_registry.roots import NearestStore
from pulse_registry.store import MOST_WHOLE_BYTES, Body, ByteRange, MemoryStore, RunStore, Store, WrapperStore
from pulse_registry.testing import Fault, FaultStore
from pulse_schemas import BASES
from tests.support.bases import LENDER, base_files, base_keyframe, broken_promises, lend, opened, state_of, tuned
from tests.support.records import DictStore, clock, ids
from tests.support.registries import Model, bits, change, garbage

HOUR, DAY = 3600.0, 86_400.0
POLICY = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=HOUR, orphan_seconds=DAY)


class World:
    """A root whose clock goes on when it is told to, with a run that lends."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, tzinfo=UTC)
        self.store = DictStore(lambda: self.now)
        self.model = lend(self.store)

    def begin(self, run: str, base: str = LENDER, store: Store | None = None) -> Model:
        model = tuned(self.model, len(run))
        with opened(store or self.store, run, base) as registry:
            registry.push(0, model)
        return model

    def go_on(self, run: str, model: Model) -> None:
        """Push a version with a keyframe of its own."""
        change(model, 77)
        with opened(self.store, run, keyframe_every=1) as registry:
            registry.push(1, model)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def gc(self, *runs: str) -> None:
        for run in runs:
            with opened(self.store, run) as registry:
                registry.gc(POLICY, dry_run=False)

    def collect(self, *, dry_run: bool = False) -> list[str | None]:
        return [base.due for base in BaseCollector(self.store).collect(HOUR, dry_run=dry_run)]

    def references(self) -> list[str]:
        return [key for key in self.store.list("") if keys.reference_of(key.partition("/")[2])]

    def check(self, run: str, model: Model) -> None:
        into = garbage(model)
        with opened(self.store, run) as registry:
            registry.pull(into=into)
        assert bits(into) == bits(model)
        assert broken_promises(self.store) == []


def test_a_reference_goes_after_the_grace_time_once_the_run_has_a_keyframe_of_its_own() -> None:
    world = World()
    model = world.begin("a")
    world.gc("a")
    assert state_of(world.store, "a").bases == {base_of(world): None}  # version 1 needs it
    world.go_on("a", model)
    world.gc("a")
    assert state_of(world.store, "a").bases[base_of(world)] is not None
    assert len(world.references()) == 2
    world.wait(HOUR + 2)
    world.gc("a")
    assert world.references() == [f"{LENDER}/bases/{base_of(world)}"]
    world.check("a", model)


def base_of(world: World) -> str:
    [folder] = world.store.folders(BASES)
    base = keys.base_of_folder(folder)
    assert base is not None
    return base


def test_a_base_that_runs_refer_to_stays_whatever_time_passes() -> None:
    world = World()
    model = world.begin("a")
    for _ in range(3):
        world.wait(30 * DAY)
        world.gc("a", LENDER)
        assert world.collect() == [None]
    world.check("a", model)


def test_a_base_is_closed_first_and_deleted_after_the_grace_time() -> None:
    world = World()
    model = world.begin("a")
    for key in [*world.store.list(f"{LENDER}/")]:
        world.store.delete(key)
    world.go_on("a", model)
    world.gc("a")
    world.wait(HOUR + 2)
    world.gc("a")
    assert (world.collect(dry_run=True), len(base_files(world.store))) == (["closed"], 2)
    assert world.collect() == ["closed"]
    assert world.collect() == [None]
    assert len(base_files(world.store)) == 2
    world.wait(HOUR + 2)
    assert world.collect() == ["deleted"]
    assert world.collect() == [None]
    assert base_files(world.store) == []
    world.check("a", model)


def test_the_lenders_collector_retires_its_own_copy_and_then_what_it_refers_to() -> None:
    world = World()
    model = world.begin("a")
    world.gc(LENDER)
    world.wait(HOUR + 2)
    world.gc(LENDER)
    assert [*world.store.list(f"{LENDER}/objects/")] == []
    world.go_on(LENDER, world.model)
    world.gc(LENDER)
    world.wait(HOUR + 2)
    world.gc(LENDER)
    assert world.references() == [f"a/bases/{base_of(world)}"]
    world.check("a", model)


def test_what_is_shared_again_after_it_was_closed_is_another_generation() -> None:
    world = World()
    first = world.begin("a")
    old = base_of(world)
    close(world.store, old)
    second = world.begin("bb")
    world.check("a", first)
    world.check("bb", second)
    assert [*state_of(world.store, "bb").bases] == [base_id(old[:64], 1)]
    assert world.collect() == [None, None]
    assert not refer(world.store, "ccc", old)


def test_a_reference_that_no_record_needs_is_an_orphan_and_its_base_can_be_named_no_more() -> None:
    world = World()
    world.begin("a")
    base = base_of(world)
    with opened(world.store, "late") as registry:
        registry.push(0, world.model)
    assert refer(world.store, "late", base)  # and then its trainer sleeps
    world.gc("late")
    world.wait(DAY + 2)
    assert world.collect() == [None]
    world.gc("late")
    assert state_of(world.store, "late").bases[base] is not None
    assert f"late/bases/{base}" in world.references()
    world.wait(HOUR + 2)
    world.gc("late")
    assert f"late/bases/{base}" not in world.references()
    below = RunStore(world.store, "late")
    woken = LogWriter(below, "late", LogReader(below, "late"), clock(), ids(9), "test")
    with pytest.raises(Conflict, match="retired"):
        woken.attach(keyframes=[base_keyframe(0, base)])


def test_a_trainer_that_died_before_its_first_record_begins_a_day_later_with_the_next_generation() -> None:
    world = World()
    world.begin("a")
    base = base_of(world)
    dying = Fault("fail_before", "put", lambda verb, key: key == f"late/{keys.record_key(1)}")
    with pytest.raises(StoreUnavailable):
        world.begin("late", store=FaultStore(world.store, [dying]))
    assert f"late/bases/{base}" in world.references()
    world.wait(DAY + 2)
    world.gc("late")
    assert state_of(world.store, "late").spent_bases == {base}
    model = world.begin("late")
    world.check("late", model)
    state = state_of(world.store, "late")
    assert state.version(0).metadata == {"base": f"{LENDER}@0"}
    assert {base for base, seq in state.bases.items() if seq is None} == {base_id(base[:64], 1)}


class Interrupted(WrapperStore):
    """Lets something happen before the n-th call."""

    def __init__(self, store: Store, nth: int, happens: Callable[[], None]) -> None:
        super().__init__(store)
        self._left, self._happens = nth, happens

    @property
    def happened(self) -> bool:
        return self._left <= 0

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            self._happens()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        self._count()
        return super().get(key, byte_range, max_bytes=max_bytes)

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        self._count()
        super().put(key, data, if_absent=if_absent)

    def exists(self, key: str) -> bool:
        self._count()
        return super().exists(key)

    def size(self, key: str) -> int:
        self._count()
        return super().size(key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        self._count()
        return super().list(prefix, after)

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        self._count()
        return super().folders(prefix, after)

    def delete(self, key: str) -> None:
        self._count()
        super().delete(key)


@pytest.mark.slow
def test_a_collector_at_any_moment_of_a_trainers_first_push_takes_nothing_that_it_needs() -> None:
    for nth in range(1, 200):
        world = left_behind(closed=False)

        def collect(world: World = world) -> None:
            world.collect()
            world.wait(2 * HOUR)
            world.collect()

        between = Interrupted(world.store, nth, collect)
        model = world.begin("a", store=between)
        world.check("a", model)
        world.wait(2 * HOUR)
        world.collect()
        world.check("a", model)
        if not between.happened:
            return
    raise AssertionError("it makes more calls than that")


def left_behind(*, closed: bool) -> World:
    """Return a root with a base to which no run refers, and a lender that does not name it: it can lend it again."""
    world = World()
    refused = Fault("fail_before", "put", lambda verb, key: key.startswith(f"{LENDER}/"))
    world.begin("gone", store=FaultStore(world.store, [refused]))
    for key in [*world.store.list("gone/")]:
        world.store.delete(key)
    if closed:
        assert world.collect() == ["closed"]
        world.wait(2 * HOUR)
    assert world.references() == []
    return world


def test_the_bases_of_several_roots_are_collected_root_by_root() -> None:
    store = NearestStore([DictStore(), MemoryStore("roots-of-bases")])
    with pytest.raises(InvalidArgument, match="name one of them"):
        BaseCollector(store)


@pytest.mark.slow
def test_a_collector_that_dies_at_any_call_leaves_what_the_next_one_finishes() -> None:
    for nth in range(1, 60):
        world = left_behind(closed=True)
        dying = FaultStore(world.store, [Fault("fail_before", nth=nth, times=1)])
        with suppress(StoreUnavailable):
            BaseCollector(dying).collect(HOUR, dry_run=False)
        world.collect()
        assert base_files(world.store) == []
        if not dying.fired:
            return
    raise AssertionError("it makes more calls than that")
