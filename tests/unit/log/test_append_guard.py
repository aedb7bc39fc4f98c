"""Admitting records that somebody else made: what is refused, what is the same record again, and who wins a number."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulse_registry.errors import AlreadyExists, Conflict, Fenced, InvalidArgument, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.log import AppendGuard, LogReader, Snapshotter, rules
from pulse_registry.log.append_guard import LONGEST_LEAP
from pulse_registry.store.wrappers.wrapper import WrapperStore
from pulse_registry.testing import CountingStore, Fault, FaultStore
from pulse_schemas import AttachRecord, CommitRecord, EpochRecord
from tests.support.records import LAYOUT, OTHER_LAYOUT, RUN, Script, chain, keyframe, new_store, patch, write_id


def append_guard(store, **options):
    reader = LogReader(store, RUN)
    return AppendGuard(store, RUN, reader, Snapshotter(store, reader), **options)


def with_objects(store, record):
    """Store all that a record names."""
    if isinstance(record, CommitRecord | AttachRecord):
        for item in rules.objects_of(record):
            store.put(item.key, b"x" * item.size)
    if isinstance(record, CommitRecord):
        store.put(keys.layout_key(record.layout), b"{}")
    return record


def stored(store):
    return [key for key in store.list("log/") if not key.startswith(keys.SNAPSHOTS)]


def ready(versions=2):
    """A store with a run, and the script that goes on from it."""
    store = new_store()
    script = chain(versions)
    script.store_in(store)
    return store, script


def test_a_whole_history_is_admitted_byte_for_byte():
    store, script = new_store(), chain(3)
    script.attach(patches=(patch(0, 2, tag=5),)).retire(keys=(patch(0, 2, tag=5).object.key,))
    door = append_guard(store)
    for record in script.records:
        assert door.admit(with_objects(store, record).seal()) == record
    assert [store.get(key) for key in stored(store)] == [record.seal() for record in script.records]
    assert LogReader(store, RUN).refresh().last == script.state.last


def test_the_same_record_again_is_no_error():
    store, script = ready()
    door, record = append_guard(store), with_objects(store, script.make_commit())
    for _ in range(3):
        assert door.admit(record.seal()) == record
    assert door.admit(script.records[0].seal()) == script.records[0]
    assert len(stored(store)) == len(script.records) + 1


def test_another_record_at_a_taken_number_is_refused():
    store, script = ready()
    other = script.records[1].model_copy(update={"write_id": write_id(77)})
    with pytest.raises(AlreadyExists, match="another record is number 1"):
        append_guard(store).admit(other.seal())
    assert store.get(keys.record_key(1)) == script.records[1].seal()


def test_a_record_that_comes_too_early_is_a_conflict():
    store, script = ready()
    record = with_objects(store, script.make_commit(seq=9))
    with pytest.raises(Conflict, match="record 9 can't be appended: the newest is 2"):
        append_guard(store).admit(record.seal())


def test_a_commit_of_an_older_epoch_is_fenced():
    store, script = ready()
    with_objects(store, script.make_commit())
    script.epoch()
    store.put(keys.record_key(3), script.records[-1].seal())
    with pytest.raises(Fenced, match="epoch 2"):
        append_guard(store).admit(script.make_commit(epoch=1).seal())
    assert len(stored(store)) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"previous": "0" * 64},
        {"epoch": 7},
        {"version": 5, "parent": 4, "patch": patch(4, 5)},
        {"layout": OTHER_LAYOUT, "patch": patch(1, 2, tag=3), "keyframe": None},
        {"patch": patch(0, 1).model_copy(update={"base": 1, "target": 2})},
    ],
    ids=["wrong-hash-of-the-last", "epoch-not-begun", "version-skipped", "layout-changed", "object-named-before"],
)
def test_a_record_that_breaks_a_rule_is_refused_and_nothing_is_written(change):
    store, script = ready()
    record = with_objects(store, script.make_commit(**change))
    before = dict(store.objects)
    with pytest.raises(InvalidArgument, match="is not valid"):
        append_guard(store).admit(record.seal())
    assert store.objects == before


def test_what_is_no_sealed_record_of_this_run_is_refused():
    store, script = ready()
    door, sealed = append_guard(store), with_objects(store, script.make_commit()).seal()
    flipped = sealed.replace(b'"cells":100', b'"cells":101')
    newer = script.make_commit().model_copy(update={"format": "pulse-record/2"})
    strange = Script("other").epoch().records[0]
    for bad in (b"", b"{}", sealed[:-1], sealed + b" ", flipped, newer.seal()):
        with pytest.raises(InvalidArgument, match="no sealed record"):
            door.admit(bad)
    with pytest.raises(InvalidArgument, match="belongs to run 'other'"):
        door.admit(strange.seal())
    assert len(stored(store)) == 3


def test_an_object_that_is_missing_or_of_another_size_is_named():
    store, script = ready()
    record = script.make_commit(patch=None, keyframe=keyframe(2, shards=3, tag=9))
    store.put(keys.layout_key(LAYOUT), b"{}")
    door, items = append_guard(store), [*rules.objects_of(record)]
    for number, item in enumerate(items):
        with pytest.raises(InvalidArgument, match=f"{item.key}, which is not there"):
            door.admit(record.seal())
        store.put(item.key, b"x" * (item.size - 1))
        with pytest.raises(InvalidArgument, match=f"{item.key} with {item.size} bytes, but it has {item.size - 1}"):
            door.admit(record.seal())
        store.put(item.key, b"x" * item.size)
        assert number < len(items)
    assert door.admit(record.seal()) == record


def test_a_layout_that_is_missing_is_named():
    store, script = ready()
    record = with_objects(store, script.make_commit(layout=OTHER_LAYOUT, patch=None, keyframe=keyframe(2, tag=9)))
    store.delete(keys.layout_key(OTHER_LAYOUT))
    with pytest.raises(InvalidArgument, match=keys.layout_key(OTHER_LAYOUT)):
        append_guard(store).admit(record.seal())


def test_an_object_key_that_is_no_key_is_refused():
    store, script = ready()
    bad = patch(1, 2).model_copy(update={"object": patch(1, 2).object.model_copy(update={"key": "log/0"})})
    with pytest.raises(InvalidArgument, match="outside the folder"):
        append_guard(store).admit(script.make_commit(patch=bad).seal())


@pytest.mark.parametrize("error", [None, lambda verb, key: AlreadyExists(key)], ids=["no-answer", "said-to-exist"])
def test_a_put_whose_answer_was_lost_is_a_success(error):
    base, script = ready()
    record = with_objects(base, script.make_commit())
    more = {} if error is None else {"error": error}
    fault = Fault("fail_after", verb="put", matches=lambda verb, key: key == keys.record_key(3), nth=1, **more)
    assert append_guard(FaultStore(base, [fault])).admit(record.seal()) == record
    assert base.get(keys.record_key(3)) == record.seal()


def test_a_put_that_failed_says_so_and_the_same_record_can_be_sent_again():
    base, script = ready()
    record = with_objects(base, script.make_commit())
    fault = Fault("fail_before", verb="put", matches=lambda verb, key: key == keys.record_key(3), nth=1)
    door = append_guard(FaultStore(base, [fault]))
    with pytest.raises(StoreUnavailable):
        door.admit(record.seal())
    assert door.admit(record.seal()) == record


def test_a_number_that_another_replica_takes_meanwhile_is_not_overwritten():
    base, script = ready()
    mine, other = (with_objects(base, script.make_commit(write_id=write_id(n))) for n in (1, 2))

    class Overtaken(WrapperStore):
        def put(self, key, data, *, if_absent=False):
            if key == keys.record_key(3) and not base.exists(key):
                base.put(key, other.seal())
            super().put(key, data, if_absent=if_absent)

    door = append_guard(Overtaken(base))
    with pytest.raises(AlreadyExists, match="took number 3"):
        door.admit(mine.seal())
    assert base.get(keys.record_key(3)) == other.seal()
    assert door.admit(other.seal()) == other


def test_one_writer_wins_each_number_even_where_the_store_lets_all_win():
    class AllWin(WrapperStore):
        """As some gateways do: a conditional put is a put; and a slow one, so that a second writer would be seen."""

        inside = most = 0
        second = threading.Event()

        def put(self, key, data, *, if_absent=False):
            if if_absent:
                self.inside += 1
                self.most = max(self.most, self.inside)
                if self.inside > 1:
                    self.second.set()
                self.second.wait(0.02)
                self.inside -= 1
            super().put(key, data)

    base, script = new_store(), chain(1)
    script.store_in(base)
    gateway = AllWin(base)
    door, writers = append_guard(gateway), 16
    start = threading.Barrier(writers)

    def contend(number):
        start.wait()
        record = script.make_commit(write_id=write_id(number))
        try:
            door.admit(record.seal())
        except AlreadyExists:
            return None
        return record

    base.put(keys.layout_key(LAYOUT), b"{}")
    with ThreadPoolExecutor(writers) as pool:
        for _ in range(10):
            record = script.make_commit()
            with_objects(base, record)
            won = [record for record in pool.map(contend, range(writers)) if record is not None]
            assert len(won) == 1
            assert base.get(keys.record_key(won[0].seq)) == won[0].seal()
            script.add(won[0])
    assert gateway.most == 1
    assert LogReader(base, RUN).refresh().last == script.state.last


def test_an_epoch_is_admitted_and_the_run_gets_a_hint_and_snapshots():
    store, script = new_store(), chain(130)
    door = append_guard(store)
    for record in script.records:
        door.admit(with_objects(store, record).seal())
    assert list(store.list(keys.SNAPSHOTS)) == [keys.snapshot_key(63), keys.snapshot_key(127)]
    counting = CountingStore(store)
    assert LogReader(counting, RUN).refresh().seq == 130
    assert counting.calls["list"] == 0
    assert isinstance(script.records[0], EpochRecord)


def test_objects_are_looked_at_with_the_map_that_is_given():
    store, script = ready()
    record = with_objects(store, script.make_commit(patch=None, keyframe=keyframe(2, shards=4, tag=9)))
    seen = []

    def each(function, items):
        items = [*items]
        seen.extend(items)
        return map(function, items)

    append_guard(store, each=each).admit(record.seal())
    assert seen == [*rules.objects_of(record)]


def test_an_epoch_that_would_leave_none_for_later_writers_is_refused_and_one_after_years_is_not():
    store, script = ready()
    for epoch in (1 + LONGEST_LEAP + 1, 2**63 - 1):
        with pytest.raises(InvalidArgument, match="more than 4294967296 after the newest, 1"):
            append_guard(store).admit(script.make_epoch(epoch=epoch).seal())
    assert len(stored(store)) == 3
    assert append_guard(store).admit(script.make_epoch(epoch=1 + LONGEST_LEAP).seal()).epoch == 1 + LONGEST_LEAP
