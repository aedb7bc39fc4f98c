"""Garbage at both sides: what the source retires goes at the copy, later, and not while a distant reader needs it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from blake3 import blake3

from pulse_registry.errors import AccessDenied
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.format import keys
from pulse_registry.log import StoreClock
from pulse_registry.mirror import copier
from pulse_registry.mirror.collection import Collection
from pulse_registry.mirror.followed_log import FollowedRounds, FollowedRun
from pulse_registry.mirror.leases import SECONDS
from pulse_registry.mirror.needs import items_of, needed_by_rounds
from pulse_registry.outer.log import OuterLog
from pulse_registry.retention import RetentionPolicy
from pulse_registry.retention.leases import read_leases
from pulse_registry.retention.rounds import RoundsCollector, RoundsGc
from pulse_registry.store import PrefixStore
from pulse_schemas import Lease, ObjectRef, canonical_json
from pulse_schemas.outer import RestartRecord
from tests.support.mirrors import mirror, tree
from tests.support.records import DictStore
from tests.support.registries import RUN, change, quick, small_model
from tests.support.waiting import HANG_S, until
from tests.unit.outer.sessions import Site
from tests.unit.outer.test_checkpoints import Team

HOUR, DAY = 3600.0, 86_400.0
POLICY = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=HOUR, orphan_seconds=DAY)


class Regions:
    """A source and a copy, whose clocks differ and go on together; a trainer, a collector and a mirror."""

    def __init__(self, versions: int) -> None:
        self.now = datetime(2026, 1, 2, tzinfo=UTC)
        self.source = DictStore(lambda: self.now)
        self.copied = DictStore(lambda: self.now + timedelta(days=40))
        self.seconds = 0.0
        self.mirror = mirror(self.source, self.copied, policy=POLICY, monotonic=lambda: self.seconds)
        self.push(versions)

    def push(self, versions: int) -> None:
        model = small_model()
        with quick(self.source, keyframe_every=3) as registry:
            first = len(registry.state().versions)
            for step in range(first, first + versions):
                change(model, step)
                registry.push(step, model)

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
        self.now += timedelta(seconds=seconds)

    def collect(self) -> list[int]:
        """Collect at the source; return what was retired."""
        with quick(self.source) as registry:
            return list(registry.gc(POLICY, dry_run=False).plan.versions)

    def read(self, root: DictStore, version: int, reader: str = "far-worker") -> None:
        """Let a reader of a root hold a version by its lease."""
        lease = Lease(run=RUN, reader=reader, version=version, seconds=900)
        PrefixStore(root, RUN).put(keys.lease_key(reader), lease.seal())

    def at_source(self) -> dict[str, tuple[str, int]]:
        """Return the leases at the source: who holds which version."""
        found = [Lease.unseal(data) for key, data in self.source.objects.items() if f"{RUN}/leases/" in key]
        return {lease.reader.partition(".")[2].partition(".")[2]: (lease.reader, lease.version) for lease in found}


def test_what_the_source_retired_goes_at_the_copy_after_its_own_grace():
    there = Regions(8)
    there.mirror.catch_up()
    before = {key for key in there.copied.objects if "/objects/" in key}
    assert there.collect()
    there.mirror.catch_up()
    assert {key for key in there.copied.objects if "/objects/" in key} == before
    there.wait(HOUR - 5)
    there.mirror.catch_up()
    assert {key for key in there.copied.objects if "/objects/" in key} == before, "its grace is not over"
    there.wait(610)
    there.collect()
    done = there.mirror.catch_up()
    assert tree(there.copied) == tree(there.source)
    assert done.deleted > 0
    assert len({key for key in there.copied.objects if "/objects/" in key}) < len(before)


def test_what_was_forgotten_before_the_copy_heard_of_it_waits_for_the_grace_too():
    there = Regions(8)
    there.mirror.catch_up()
    before = {key for key in there.copied.objects if "/objects/" in key}
    there.collect()
    there.wait(2 * HOUR)
    there.collect()
    there.wait(DAY)
    there.mirror.catch_up()
    assert {key for key in there.copied.objects if "/objects/" in key} == before, "readers there may be about to read"
    there.wait(HOUR + 5)
    there.mirror.catch_up()
    assert tree(there.copied) == tree(there.source)


@pytest.mark.slow
def test_a_mirror_that_is_started_for_each_look_deletes_what_the_source_has_forgotten():
    there = Regions(8)
    there.mirror.close()

    def look() -> None:
        with mirror(there.source, there.copied, policy=POLICY) as one:
            one.catch_up()

    look()
    for _ in range(9):
        there.collect()
        there.push(1)
        look()
        there.wait(4 * HOUR)  # at each look the source has deleted, and forgotten, what it had retired at the last one
    there.collect()
    look()
    before = {key for key in there.copied.objects if "/objects/" in key}
    versions = {v for key in before for v in keys.versions_of(key.removeprefix(f"{RUN}/"))}
    assert min(versions) > 8, "what was forgotten is gone a day later"
    there.wait(DAY)
    there.push(1)
    late = {*there.collect()}
    there.wait(HOUR + 5)
    there.collect()
    there.wait(30)
    retired = {key for key in before if late.intersection(keys.versions_of(key.removeprefix(f"{RUN}/")))}
    assert retired
    assert not retired & there.source.objects.keys()
    look()
    assert retired <= there.copied.objects.keys(), "its readers have not heard of it for as long as the grace"
    there.wait(HOUR + 5)
    there.push(1)
    look()
    assert not retired & there.copied.objects.keys()


def test_what_others_left_at_the_copy_goes_when_it_is_old():
    there = Regions(3)
    there.mirror.catch_up()
    stray = f"{RUN}/{keys.patch_key(1, 2, '0' * 31 + '7')}"
    there.copied.put(stray, b"of a writer that was refused")
    there.wait(DAY - 10)
    there.mirror.catch_up()
    assert stray in there.copied.objects
    there.wait(60 + HOUR)
    there.mirror.catch_up()
    assert tree(there.copied) == tree(there.source)


class OuterRegions(Regions):
    """Regions whose source has outer rounds, too, of two trainers."""

    def __init__(self) -> None:
        super().__init__(2)
        site = Site()
        site.store = PrefixStore(self.source, RUN)
        self.team = Team(site, "a", "b")

    def work(self, checkpoints: int) -> None:
        """Make rounds until so many checkpoints are named."""
        while len(self.team.state().checkpoints) < checkpoints:
            self.team.round()

    def collect_rounds(self) -> RoundsGc:
        store = self.team.site.store
        clock = StoreClock(store)
        return RoundsCollector(store, OuterLog(store, RUN), clock).collect(POLICY, clock.now(), dry_run=False)

    def outer_objects(self, root: DictStore) -> set[str]:
        return {key for key in root.objects if key.startswith(f"{RUN}/outer/objects/")}

    def whole(self) -> list[str]:
        """Return what the copy's outer log needs, and the copy lacks."""
        store = PrefixStore(self.copied, RUN)
        return [
            item.key
            for unit in needed_by_rounds(OuterLog(store, RUN).refresh())
            for item in items_of(store, unit)
            if isinstance(item, ObjectRef) and f"{RUN}/{item.key}" not in self.copied.objects
        ]


def test_what_outer_rounds_have_retired_goes_at_the_copy_after_its_own_grace():
    there = OuterRegions()
    there.work(3)
    there.mirror.catch_up()
    before = there.outer_objects(there.copied)
    assert before == there.outer_objects(there.source)
    retired = there.collect_rounds().retired
    assert retired > 0
    there.wait(HOUR + 5)
    assert there.collect_rounds().deleted == retired
    there.mirror.catch_up()
    assert there.outer_objects(there.copied) == before, "its readers have not heard of it for as long as the grace"
    there.wait(HOUR - 10)
    there.mirror.catch_up()
    assert there.outer_objects(there.copied) == before
    there.wait(610)  # a mirror tidies up every ten minutes
    there.mirror.catch_up()
    assert there.outer_objects(there.copied) == there.outer_objects(there.source)
    assert len(before) - len(there.outer_objects(there.copied)) == retired
    assert not there.whole()
    there.team.rounds(2)
    there.mirror.catch_up()
    assert there.outer_objects(there.copied) == there.outer_objects(there.source)
    assert not there.whole()


def test_rounds_are_collected_at_a_copy_that_began_behind_a_checkpoint():
    there = OuterRegions()
    there.work(3)
    there.collect_rounds()
    there.wait(HOUR + 5)
    there.collect_rounds()  # what the first checkpoint stands for is gone before anybody has copied it
    there.mirror.catch_up()
    assert there.outer_objects(there.copied) == there.outer_objects(there.source)
    assert not there.whole()
    there.work(4)
    there.collect_rounds()
    there.wait(610)
    there.mirror.catch_up()  # what was freed by which record is known from here on
    there.wait(HOUR + 5)
    there.collect_rounds()
    there.mirror.catch_up()
    assert there.outer_objects(there.copied) == there.outer_objects(there.source)
    assert not there.whole()


def test_what_a_member_left_unnamed_goes_at_the_copy_when_it_is_old_and_what_may_be_named_yet_stays():
    there = OuterRegions()
    there.work(2)
    there.mirror.catch_up()
    state = there.team.state()
    stray, yet = (
        f"{RUN}/outer/{keys.contribution_key(number, 'a', '0' * 31 + '7')}"
        for number in (state.checkpoints[-1].round, state.open)
    )
    for key in (stray, yet):
        there.copied.put(key, b"of a mirror that died")
    there.wait(DAY - 10)
    there.mirror.catch_up()
    assert stray in there.copied.objects
    there.wait(610)
    there.mirror.catch_up()
    assert stray not in there.copied.objects
    assert yet in there.copied.objects
    assert not there.whole()


def test_rounds_that_began_anew_leave_nothing_at_a_copy_that_they_do_not_need():
    there = OuterRegions()
    there.work(2)
    there.mirror.catch_up()
    number = there.team.state().open
    OuterLog(there.team.site.store, RUN).append(
        lambda _, common: RestartRecord(**common, round=number, digest="0" * 32)
    )
    there.mirror.catch_up()
    there.wait(610)
    there.mirror.catch_up()  # what was freed by which record is known from here on
    there.wait(HOUR + 5)
    assert there.collect_rounds().deleted == len(there.outer_objects(there.copied))
    assert there.outer_objects(there.source) == set()
    there.mirror.catch_up()
    assert there.outer_objects(there.copied) == set()


def test_what_another_mirror_has_named_since_the_last_look_stays():
    there = Regions(3)
    there.mirror.catch_up()
    source, copied = PrefixStore(there.source, RUN), PrefixStore(there.copied, RUN)
    logs = FollowedRun(source, RUN), FollowedRun(copied, RUN), FollowedRounds(copied, RUN)
    for log in logs:
        log.refresh()
    there.push(2)
    mirror(there.source, there.copied, policy=POLICY).catch_up()
    there.wait(DAY + HOUR)
    assert Collection(copied, RUN, map, POLICY).collect(*logs, []) == 0
    assert tree(there.copied) == tree(there.source)


def test_leases_of_distant_readers_keep_their_versions_at_the_source():
    there = Regions(6)
    there.mirror.catch_up()
    there.read(there.copied, 2)
    there.mirror.catch_up()
    assert there.at_source()["far-worker"][1] == 2
    assert 2 not in there.collect()
    there.wait(400)
    there.read(there.copied, 3)
    there.mirror.catch_up()
    assert there.at_source()["far-worker"][1] == 3, "written anew as it goes on"
    there.wait(1000)
    there.mirror.catch_up()
    assert "far-worker" not in there.at_source(), "its lease at the copy has run out"
    assert f"{RUN}/{keys.lease_key('far-worker')}" not in there.copied.objects
    assert {2, 3} & set(there.collect())


def test_leases_are_kept_while_one_object_takes_longer_than_they_last(monkeypatch):
    monkeypatch.setattr(copier, "LOOK_S", 0.01)
    there, seen = Regions(6), list[int]()
    there.mirror.catch_up()
    there.read(there.copied, 2)
    there.mirror.catch_up()
    get, first = there.source.get, iter([True])

    def slow(key, *args, **named):
        if "/objects/" in key and next(first, False):
            there.wait(SECONDS)
            there.read(there.copied, 3)
            until(lambda: there.at_source()["far-worker"][1] == 3)
            store = PrefixStore(there.source, RUN)
            seen.extend(read_leases(store, RUN, StoreClock(store), there.now, POLICY).held.values())
        return get(key, *args, **named)

    there.push(1)
    monkeypatch.setattr(there.source, "get", slow)
    there.mirror.catch_up()
    assert sorted(seen) == [3, 5], "the mirror's own, and its reader's"


def test_leases_of_many_readers_are_carried_beside_one_another(monkeypatch):
    there, readers = Regions(3), 16
    there.mirror.catch_up()
    for number in range(readers):
        there.read(there.copied, 1, f"worker-{number}")
    put, together = there.source.put, threading.Barrier(4)

    def slow(key, *args, **named):
        if "worker-" in key:
            together.wait(HANG_S)
        put(key, *args, **named)

    monkeypatch.setattr(there.source, "put", slow)
    there.mirror.catch_up()
    assert len(there.at_source()) == readers + 1


def test_a_lease_of_a_newer_release_keeps_all_and_stops_no_copy():
    there, events = Regions(4), list[Event]()
    there.mirror.catch_up()
    there.collect()
    there.mirror.catch_up()
    objects = {key for key in there.copied.objects if "/objects/" in key}
    body = {"format": "pulse-lease/2"}
    sealed = canonical_json({"blake3": blake3(canonical_json(body)).hexdigest(), "body": body})
    there.copied.put(f"{RUN}/{keys.lease_key('new')}", sealed)
    there.wait(HOUR + 5)
    there.push(1)
    with mirror(there.source, there.copied, policy=POLICY, events=Events(events.append)) as one:
        assert one.catch_up().records
        one.step()
    assert {key for key in there.copied.objects if "/objects/" in key} >= objects
    assert [(event.kind, event.key) for event in events] == [(EventKind.LEASE_FAILED, None)]


def test_the_mirror_keeps_at_the_source_what_it_is_about_to_copy():
    there = Regions(5)
    there.mirror.catch_up()
    there.push(5)
    assert [version for _, version in there.at_source().values()] == [4]
    retired = there.collect()
    assert retired
    assert 4 not in retired
    there.mirror.close()
    assert not there.at_source()


def test_a_source_that_takes_no_leases_is_copied_all_the_same():
    class ReadOnly(DictStore):
        def put(self, key, data, *, if_absent=False):
            raise AccessDenied(f"{key}: read only")

    there, events = Regions(2), list[Event]()
    source = ReadOnly()
    source.objects, source.times = there.source.objects, there.source.times
    with mirror(source, there.copied, events=Events(events.append)) as one:
        one.catch_up()
    assert tree(there.copied) == tree(there.source)
    assert [event.kind for event in events] == [EventKind.LEASE_FAILED]
