"""The collector: two phases by the store's clock, never what is live, whoever is stalled, killed or beside it."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from pulse_registry.errors import (
    Conflict,
    Fenced,
    InvalidArgument,
    NotFound,
    StoreUnavailable,
    UnsupportedFormat,
)
from pulse_registry.format import keys
from pulse_registry.log import LogReader
from pulse_registry.retention import Collector, RetentionPolicy
from pulse_registry.retention import collector as collector_module
from pulse_registry.store import MOST_WHOLE_BYTES, MemoryStore, Store, WrapperStore
from pulse_registry.testing import CountingStore
from pulse_schemas import DeleteRecord, RetireRecord, canonical_json, unseal_record
from tests.support.records import RUN, DictStore, keyframe, patch, write_id
from tests.unit.retention.world import DAY, HOUR, SOON, World

TEN_MINUTES = 600.0


def log_of(world: World) -> list[str]:
    return [key for key in world.store.objects if key.startswith(keys.LOG) and key.count("/") == 1]


def named(world: World) -> set[str]:
    state = world.state
    return {p.object.key for p in state.patches} | {item.key for k in state.keyframes for item in (k.index, *k.shards)}


def test_a_dry_run_writes_nothing_but_looks_at_the_clock():
    world = World().commits(10)
    before = dict(world.store.objects)
    found = world.collect(dry_run=True)
    assert (found.dry_run, found.plan.versions, found.deleted) == (True, (0, 1, 2, 3, 4, 5, 6, 7), 0)
    assert world.store.objects.keys() - before.keys() == {keys.CLOCK}
    assert all(world.store.objects[key] == data for key, data in before.items())


def test_versions_are_retired_at_once_and_deleted_after_the_grace_time():
    world = World().commits(10)
    before = world.objects()
    world.collect()
    assert world.versions() == [8, 9]
    assert world.objects() == before
    world.wait(HOUR - 2)
    assert (world.collect().deleted, world.collect().waiting) == (0, 8 + 4)
    assert world.objects() == before
    world.wait(10)
    assert world.collect().deleted == 8 + 4
    assert world.objects() == named(world)
    assert world.state.find(0) is None
    assert not world.state.retired_keys


def test_a_second_run_finds_nothing_to_do_and_writes_nothing():
    world = World().commits(10)
    world.collect()
    world.wait(2 * HOUR)
    world.collect()
    before = dict(world.store.objects)
    again = world.collect()
    assert (again.plan.empty, again.deleted, again.waiting, again.more) == (True, 0, 0, False)
    assert world.store.objects == before


def test_the_run_goes_on_after_a_collection():
    world = World().commits(9)
    world.collect()
    world.wait(2 * HOUR)
    world.collect()
    world.commits(3)
    assert world.versions() == [7, 8, 9, 10, 11]


@pytest.mark.parametrize("skew", [-TEN_MINUTES, TEN_MINUTES, -365 * DAY])
def test_clocks_of_machines_that_are_off_change_nothing(skew):
    def story(world: World) -> list[object]:
        seen: list[object] = []
        for _ in range(4):
            world.commits(3)
            world.lease("w", world.versions()[0], 1800)
            world.put(patch(0, 50, tag=99))
            for _ in range(3):
                world.wait(HOUR / 2)
                found = world.collect(
                    RetentionPolicy(keep_last=2, keep_seconds=HOUR, grace_seconds=HOUR, orphan_seconds=HOUR)
                )
                seen += [found.plan, found.deleted, found.held, sorted(world.objects()), world.versions()]
        return seen

    assert story(World(skew)) == story(World())


def test_young_versions_stay_until_the_store_says_that_they_are_old():
    world = World().commits(4, whole_every=1)
    world.wait(DAY)
    world.commits(4, whole_every=1)
    policy = RetentionPolicy(keep_last=1, keep_seconds=DAY)
    world.wait(-10)
    assert world.collect(policy, dry_run=True).plan.versions == ()
    world.wait(20)
    assert world.collect(policy, dry_run=True).plan.versions == (0, 1, 2, 3)
    world.wait(DAY)
    assert world.collect(policy, dry_run=True).plan.versions == (0, 1, 2, 3, 4, 5, 6)


# -- leases ------------------------------------------------------------------------------------------------------------


def test_a_living_lease_keeps_its_version_and_a_dead_one_goes():
    world = World().commits(10)
    world.lease("w1", 5, 1800)
    world.lease("w2", 2, 7200)
    world.wait(HOUR)
    found = world.collect()
    assert found.held == {"w2": 2}
    assert (found.leases, world.versions()[:1]) == (1, [0])
    assert not world.store.exists(keys.lease_key("w1"))
    world.wait(HOUR + 5)
    world.collect()
    assert world.versions() == [8, 9]
    assert not world.store.exists(keys.lease_key("w2"))


def test_a_lease_that_is_renewed_while_the_collector_works_stays():
    world = World().commits(6)
    world.lease("w", 5, 60)
    world.wait(HOUR)

    class Renewing(WrapperStore):
        def list(self, prefix, after=None):
            if keys.SNAPSHOTS.startswith(prefix):
                world.lease("w", 5, 60)
            return super().list(prefix, after)

    world.collect(through=Renewing)
    assert world.store.exists(keys.lease_key("w"))


@pytest.mark.parametrize("data", [b"", b"{}", b"not a lease", canonical_json({"blake3": "0" * 64, "body": {}})])
def test_what_is_no_lease_keeps_nothing_and_goes_when_it_is_old(data, caplog):
    world = World().commits(6)
    world.store.put(keys.lease_key("w"), data)
    assert world.collect().held == {}
    assert "is no lease" in caplog.text
    assert world.store.exists(keys.lease_key("w"))
    world.wait(DAY + 5)
    world.collect()
    assert not world.store.exists(keys.lease_key("w"))


def test_a_lease_under_the_key_of_another_reader_keeps_nothing():
    world = World().commits(6)
    world.lease("other", 0)
    world.store.put(keys.lease_key("w"), world.store.objects.pop(keys.lease_key("other")))
    assert world.collect().held == {}


def test_with_a_lease_of_a_newer_release_nothing_is_retired():
    from blake3 import blake3

    world = World().commits(6)
    body = {"format": "pulse-lease/2"}
    world.store.put(
        keys.lease_key("w"),
        canonical_json({"blake3": blake3(canonical_json(body)).hexdigest(), "body": body}),
    )
    log = log_of(world)
    with pytest.raises(UnsupportedFormat, match=r"leases/w\.json"):
        world.collect()
    assert log_of(world) == log


# -- orphans and stalled writers ---------------------------------------------------------------------------------------


def test_orphans_are_retired_when_they_are_old_and_deleted_after_the_grace_time():
    world = World().commits(3)
    old, young = patch(0, 2, tag=7), patch(0, 2, tag=8)
    world.put(old)
    world.wait(DAY - 10)
    world.put(young)
    world.wait(20)
    found = world.collect(RetentionPolicy())
    assert (found.plan.orphans, found.orphan_bytes) == ((old.object.key,), 100)
    assert world.store.exists(old.object.key)
    world.wait(HOUR + 5)
    world.collect(RetentionPolicy())
    assert not world.store.exists(old.object.key)
    assert world.store.exists(young.object.key)


def test_what_no_record_can_name_any_more_is_deleted_when_it_is_old():
    world = World().commits(9)
    world.collect()
    world.wait(2 * HOUR)
    world.collect()
    late = [patch(0, 3, tag=7).object.key, keyframe(2, tag=7).index.key, "objects/notes.txt"]
    for key in late:
        world.store.put(key, b"x")
    assert world.collect().deleted == 0
    world.wait(DAY + 5)
    assert world.collect().deleted == 3
    assert world.objects() == named(world)


def test_a_stalled_trainer_that_wakes_after_the_collection_commits_nothing():
    world = World().commits(6)
    draft = world.draft(6, tag=5)
    world.put(draft.patch)
    world.wait(DAY + 5)
    world.collect()
    with pytest.raises(Conflict, match="taken for a crashed writer's"):
        world.trainer.commit(draft)
    world.wait(2 * HOUR)
    world.collect()
    with pytest.raises(Conflict):
        world.trainer.commit(draft)
    assert world.state.latest.version == 5
    world.commit()
    assert world.objects() == named(world)
    with pytest.raises(Conflict):
        world.trainer.commit(draft)


def test_a_stalled_compactor_that_wakes_after_the_collection_attaches_nothing():
    world = World().commits(9)
    merged, frame = patch(4, 6, tag=5), keyframe(7, tag=5)
    world.put(merged, frame)
    compactor = world.writer()
    policy = RetentionPolicy(keep_last=9, keep_seconds=0, grace_seconds=HOUR, orphan_seconds=DAY)
    world.wait(DAY + 5)
    world.collect(policy)
    for objects in ({"patches": [merged]}, {"keyframes": [frame]}):
        with pytest.raises(Conflict, match="taken for a crashed writer's"):
            compactor.attach(**objects)
    world.wait(2 * HOUR)
    world.collect(policy)
    world.collect()  # the versions, too
    world.wait(2 * HOUR)
    world.collect()
    for objects in ({"patches": [merged]}, {"keyframes": [frame]}):
        for writer in (compactor, world.writer()):
            with pytest.raises((InvalidArgument, Conflict), match="was retired"):
                writer.attach(**objects)
    assert world.objects() == named(world)


def test_an_orphan_that_is_named_before_its_record_lands_stays():
    world = World().commits(3)
    merged = patch(0, 2, tag=7)
    world.put(merged)
    world.wait(DAY + 5)

    class Overtaken(WrapperStore):
        def put(self, key, data, *, if_absent=False):
            if if_absent and not world.state.is_live(merged.object.key):
                world.writer().attach([merged])
            super().put(key, data, if_absent=if_absent)

    world.collect(RetentionPolicy(), through=Overtaken)
    assert world.state.is_live(merged.object.key)
    world.wait(2 * DAY)
    world.collect(RetentionPolicy())
    assert world.store.exists(merged.object.key)


def test_a_version_that_gets_a_tag_before_its_record_lands_stays():
    world = World().commits(10)

    class Overtaken(WrapperStore):
        def put(self, key, data, *, if_absent=False):
            if if_absent and not world.state.tags:
                world.writer().tag("best", 2)
            super().put(key, data, if_absent=if_absent)

    world.collect(through=Overtaken)
    assert world.versions() == [0, 1, 2, 8, 9]


# -- restarts and company ----------------------------------------------------------------------------------------------


class Dying(WrapperStore):
    """A store that is lost at call number ``at``, before or after it has done it."""

    def __init__(self, store, at, after):
        super().__init__(store)
        self.left, self.after = at, after

    def _call(self, call):
        self.left -= 1
        if self.left < 0 or (self.left == 0 and not self.after):
            raise StoreUnavailable("gone")
        result = call()
        if self.left == 0:
            raise StoreUnavailable("gone")
        return result

    def get(self, key, byte_range=None, *, max_bytes=MOST_WHOLE_BYTES):
        return self._call(lambda: super(Dying, self).get(key, byte_range, max_bytes=max_bytes))

    def put(self, key, data, *, if_absent=False):
        self._call(lambda: super(Dying, self).put(key, data, if_absent=if_absent))

    def size(self, key):
        return self._call(lambda: super(Dying, self).size(key))

    def modified(self, key):
        return self._call(lambda: super(Dying, self).modified(key))

    def list(self, prefix, after=None):
        return self._call(lambda: super(Dying, self).list(prefix, after))

    def delete(self, key):
        self._call(lambda: super(Dying, self).delete(key))


def crowded() -> World:
    """A run in the middle of everything: retired versions to delete, others to retire, orphans, leases, snapshots."""
    world = World().commits(6)
    world.put(patch(3, 5, tag=7))
    world.wait(DAY)
    world.collect()
    world.wait(2 * HOUR)
    world.commits(6)
    world.lease("dead", 7, 1)
    world.lease("alive", 9, 10_000)
    world.wait(100)
    return world


@pytest.mark.slow
def test_a_collector_that_is_killed_at_any_call_is_made_good_by_the_next():
    start, clean, counting = crowded(), crowded(), []
    clean.collect(through=lambda store: counting.append(CountingStore(store)) or counting[0])
    total = sum(counting[0].calls.values())
    assert total > 30
    for at in range(1, total + 1):
        for after in (False, True):
            world = start.copy()
            with pytest.raises(StoreUnavailable):
                world.collect(through=lambda store, at=at, after=after: Dying(store, at, after))
            assert named(world) <= world.objects()
            world.collect()
            assert world.versions() == clean.versions()
            assert world.objects() == clean.objects()
            assert not world.store.exists(keys.lease_key("dead"))
            assert world.store.exists(keys.lease_key("alive"))


def test_two_collectors_at_once_do_the_work_once():
    world = World().commits(10)
    world.put(patch(0, 50, tag=7))
    world.wait(DAY + 5)
    beside = []

    class Beside(WrapperStore):
        def put(self, key, data, *, if_absent=False):
            if if_absent and not beside:
                beside.append(world.collect())
            super().put(key, data, if_absent=if_absent)

        def delete(self, key):
            if len(beside) < 2:
                beside.append(world.collect())
            super().delete(key)

    world.collect(through=Beside)
    world.wait(2 * HOUR)
    world.collect(through=Beside)
    assert len(beside) == 2
    records = [unseal_record(world.store.get(key)) for key in log_of(world)]
    assert [type(record) for record in records if isinstance(record, RetireRecord | DeleteRecord)] == [
        RetireRecord,
        DeleteRecord,
    ]
    assert world.objects() == named(world)


def test_a_long_retirement_is_cut_into_several_records(monkeypatch):
    monkeypatch.setattr(collector_module, "LONGEST", 5)
    world = World().commits(12)
    world.collect()
    records = [unseal_record(world.store.get(key)) for key in log_of(world)]
    retired = [record for record in records if isinstance(record, RetireRecord)]
    assert [len(record.versions) + len(record.keys) for record in retired] == [5, 5, 5, 3]
    assert sum(len(record.versions) for record in retired) == 8
    assert world.versions() == [8, 9, 10, 11]
    world.wait(2 * HOUR)
    world.collect()
    assert world.objects() == named(world)


# -- what is touched, and what it costs --------------------------------------------------------------------------------


def test_only_objects_old_snapshots_and_dead_leases_are_deleted():
    world = World().commits(20)
    others = [
        "reports/0123456789abcdef.json",
        "requests/x.json",
        "notes",
        f"layouts/{'a' * 64}.json",
        "log/snapshots/x",
    ]
    for key in others:
        world.store.put(key, b"x")
    world.wait(30 * DAY)
    # What writers who may delete nothing, or died, have left.
    newest = max(key for key in world.store.objects if keys.snapshot_seq(key) is not None)
    left = [keys.snapshot_key(1), keys.snapshot_key(2), keys.segment_key(2, "0" * 64)]
    for key in left:
        world.store.put(key, world.store.objects[newest])
    before = set(world.store.objects)
    world.collect()
    world.wait(30 * DAY)
    world.collect()
    gone = before - set(world.store.objects)
    assert gone >= set(left)
    assert all(key.startswith((keys.OBJECTS, keys.SNAPSHOTS, keys.SEGMENTS)) for key in gone)
    assert set(others) <= set(world.store.objects)
    assert len([key for key in world.store.objects if keys.snapshot_seq(key) is not None]) == 2
    assert world.objects() == named(world)


def test_the_requests_do_not_grow_with_the_objects_that_stay():
    def requests(versions: int) -> Counter:
        world = World().commits(versions, whole_every=1)
        counting = CountingStore(world.store)
        world.collect(RetentionPolicy(keep_last=versions, keep_seconds=0), through=lambda store: counting)
        return Counter({verb: n for verb, n in counting.calls.items() if verb != "get"})

    few, many = requests(8), requests(32)
    assert few["put"] == many["put"] == 1  # the clock
    assert few["list"] == many["list"] == 4  # objects, references, snapshots, leases
    assert many["size"] <= few["size"] + 2


def test_a_run_that_is_not_there_is_not_found():
    store = DictStore()
    collector = Collector(store, RUN, LogReader(store, RUN), World().trainer, lambda: write_id(1))
    with pytest.raises(NotFound, match="no run"):
        collector.collect(RetentionPolicy())


def test_a_store_without_a_clock_is_refused():
    class Timeless(MemoryStore):
        def modified(self, key):
            return Store.modified(self, key)

    world = World()
    store = Timeless("timeless")
    with pytest.raises(InvalidArgument, match="does not tell when"):
        Collector(store, RUN, LogReader(world.store, RUN), world.trainer, lambda: write_id(1)).collect(
            RetentionPolicy()
        )


def test_the_outcome_can_be_told_as_json():
    world = World().commits(3)
    found = world.collect(SOON, dry_run=True)
    assert json.loads(json.dumps({str(n): why for n, why in found.plan.kept.items()}))


def test_where_a_run_does_not_live_any_more_nothing_is_retired_or_deleted():
    world = World().commits(9)
    world.collect(SOON)
    world.wait(3 * 3600)  # what it retired could be deleted now
    world.trainer.move("s3://bucket/eu", write_id(7))
    before = {key: data for key, data in world.store.objects.items() if key != keys.CLOCK}
    with pytest.raises(Fenced, match="moved it to s3://bucket/eu"):
        world.collect(SOON)
    assert {key: data for key, data in world.store.objects.items() if key != keys.CLOCK} == before
