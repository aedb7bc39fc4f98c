"""A record that is missing looks like the end of the log: who is about to write looks past it, and readers tell."""

from __future__ import annotations

import pytest

from pulse_registry.errors import CorruptObject
from pulse_registry.events import EventKind, Events
from pulse_registry.format import keys
from pulse_registry.log import AppendGuard, LogReader, LogWriter, Snapshotter
from pulse_registry.store import MOST_WHOLE_BYTES
from pulse_registry.store.wrappers.wrapper import WrapperStore
from pulse_registry.testing import CountingStore
from pulse_schemas import RECORD_KINDS, Head
from tests.support.records import APPENDS, RUN, chain, clock, draft, ids, keyframe, new_store, writer


def store_without(*seqs, records=13):
    """A store with the records 0 to ``records`` - 1, less some of them."""
    store = chain(records - 1).store_in(new_store())
    for seq in seqs:
        store.delete(keys.record_key(seq))
    return store


def told(store):
    """Open a run; return the number of its newest record and the events of that."""
    events = []
    reader = LogReader(store, RUN, events=Events(events.append))
    reader.refresh()
    return reader.refresh().seq, events


def hint(seq):
    return Head(seq=seq, snapshot=None).seal()


def test_a_record_of_each_kind_is_appended_here_and_where_signatures_are_tested():
    assert {"commit", *APPENDS} == RECORD_KINDS.keys()


@pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS)
def test_no_record_is_written_where_one_is_missing(append):
    store = store_without(6)
    before = dict(store.objects)
    trainer = writer(store)
    for _ in range(2):
        with pytest.raises(
            CorruptObject, match="record 6 is missing: the log ends at record 5, and record 7 is"
        ) as caught:
            append(trainer)
        assert caught.value.key == keys.record_key(6)
    assert store.objects == before
    store.put(keys.record_key(6), chain(12).records[6].seal())
    append(trainer)
    assert LogReader(store, RUN).refresh().seq == 13


def test_all_records_up_to_the_next_one_that_is_there_are_named():
    with pytest.raises(CorruptObject, match="records 6 to 8 are missing"):
        writer(store_without(6, 7, 8, 10)).begin()
    with pytest.raises(CorruptObject, match="record 0 is missing: the log ends before its first record"):
        writer(store_without(0)).begin()


def test_a_service_admits_no_record_where_one_is_missing():
    store = store_without(6)
    before = dict(store.objects)
    reader = LogReader(store, RUN)
    door = AppendGuard(store, RUN, reader, Snapshotter(store, reader))
    with pytest.raises(CorruptObject, match="record 6 is missing"):
        door.admit(chain(5).epoch().records[-1].seal())
    assert store.objects == before
    store.put(keys.record_key(6), chain(12).records[6].seal())
    door.admit(chain(12).epoch().records[-1].seal())
    counting = CountingStore(store)
    door = AppendGuard(counting, RUN, LogReader(counting, RUN), Snapshotter(counting, reader))
    for record in chain(12).epoch().epoch().epoch().records[-2:]:
        door.admit(record.seal())
    assert counting.calls["list"] == 1


def test_a_term_costs_a_look_at_the_mark_and_one_listing_and_what_follows_none():
    store = store_without()
    store.put(keys.HEAD, hint(12))
    counting = CountingStore(store)
    reader = LogReader(counting, RUN)
    trainer = LogWriter(counting, RUN, reader, clock(), ids(7), "w", snapshot_every=None)
    reader.refresh()
    counting.reset()
    trainer.begin()
    looks = [("get", keys.record_key(13)), ("get", keys.MIRROR), ("list", keys.LOG)]
    assert counting.ledger == [*looks, ("put", keys.record_key(13))]
    counting.reset()
    trainer.commit(draft(12))
    trainer.tag("best", 3)
    assert counting.ledger == [("put", keys.record_key(14)), ("put", keys.record_key(15))]
    counting.reset()
    reader.refresh()
    assert counting.ledger == [("get", keys.record_key(16))]


def test_a_look_past_a_long_log_reads_one_key():
    class Counted(WrapperStore):
        listed = 0

        def list(self, prefix, after=None):
            for key in super().list(prefix, after):
                self.listed += 1
                yield key

    store = Counted(store_without(3, records=60))
    reader = LogReader(store, RUN)
    reader.refresh()
    store.listed = 0
    with pytest.raises(CorruptObject, match="record 3 is missing"):
        reader.check_end()
    assert store.listed == 1


class Overtaken(WrapperStore):
    """Lets another writer append while the log is listed, whose first record the listing has gone by already."""

    def __init__(self, store, other):
        super().__init__(store)
        self.other = other
        self.times = 2

    def list(self, prefix, after=None):
        if prefix != keys.LOG or not self.times:
            return super().list(prefix, after)
        self.times -= 1
        before = LogReader(self._store, RUN).refresh().seq
        self.other.tag("one", 1)
        self.other.tag("two", 2)
        return iter([key for key in super().list(prefix, after) if key != keys.record_key(before + 1)])


@pytest.mark.parametrize("every", [64, 1], ids=["records", "snapshots"])
def test_a_listing_that_others_overtake_shows_no_gap(every):
    base = store_without()
    trainer = writer(Overtaken(base, writer(base, 2, snapshot_every=every)), 3)
    assert trainer.begin() == 2
    state = LogReader(base, RUN).refresh()
    assert (state.seq, state.epoch) == (17, 2)


@pytest.mark.parametrize("good", [True, False], ids=["sealed", "junk"])
def test_a_snapshot_of_later_records_keeps_writers_from_their_place_if_it_is_one(good):
    store, whole = store_without(10, 11, 12), chain(12)
    store.put(keys.snapshot_key(12), whole.state.to_snapshot().seal() if good else b"junk")
    store.put(keys.snapshot_key(99), b"junk")
    if good:
        match = r"records 10 to 12 are missing: the log ends at record 9, and a snapshot in log/snapshots/ tells"
        with pytest.raises(CorruptObject, match=match):
            writer(store).begin()
        assert keys.record_key(10) not in store.objects
        store.delete(keys.snapshot_key(12))  # the way out where they are lost for good
    assert writer(store).begin() == 2


def test_a_hint_of_later_records_alone_keeps_nobody_from_writing():
    store = store_without(12)
    store.put(keys.HEAD, hint(12))
    assert writer(store).begin() == 2
    assert told(store) == (12, [])


def test_a_reader_whose_hint_knows_of_a_later_record_tells_so_once_and_goes_on():
    store = store_without(6)
    store.put(keys.HEAD, hint(11))
    seq, (event,) = told(store)
    assert seq == 5
    assert (event.kind, event.run, event.key) == (EventKind.RECORD_MISSING, RUN, keys.record_key(6))
    assert "the log ends at record 5, and the hint head tells of record 11" in event.message


def test_a_reader_that_meets_a_snapshot_of_later_records_tells_so_and_goes_on():
    store = store_without(10, 11, 12)
    store.put(keys.snapshot_key(11), chain(11).state.to_snapshot().seal())
    seq, (event,) = told(store)
    assert seq == 9
    assert "snapshots/000000000011.json tells of record 11" in event.message


@pytest.mark.parametrize("seq", [None, 0, 12])
def test_of_a_log_that_goes_as_far_as_its_hint_nothing_is_told(seq):
    store = store_without()
    if seq is not None:
        store.put(keys.HEAD, hint(seq))
    assert told(store) == (12, [])


def test_a_hint_that_a_writer_wrote_while_the_log_was_read_is_no_gap():
    class Late(WrapperStore):
        def get(self, key, byte_range=None, *, max_bytes=MOST_WHOLE_BYTES):
            data = super().get(key, byte_range, max_bytes=max_bytes)
            if key == keys.HEAD:
                other.begin()
                other.commit(draft(12))
            return data

    base = store_without()
    other = writer(base, 2)
    other.tag("best", 1)
    base.put(keys.HEAD, hint(13))
    assert told(Late(base)) == (15, [])


def test_a_log_that_is_read_whole_is_folded_from_its_first_record_on():
    store = chain(70).store_in(new_store())
    writer(store).attach(keyframes=[keyframe(3, tag=9)])
    writer(store).begin()
    assert [*store.list(keys.SNAPSHOTS)]
    counting = CountingStore(store)
    assert LogReader(counting, RUN, whole=True).refresh().seq == 72
    assert counting.ledger == [("get", keys.record_key(seq)) for seq in range(74)]
