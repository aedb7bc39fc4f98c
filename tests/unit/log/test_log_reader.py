"""Opening and following a run's log, and what hints, snapshots and damage do to it."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import CorruptObject, StoreUnavailable, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.log import LogReader, fold
from pulse_registry.log.segment_merges import RATIO
from pulse_registry.testing import CountingStore, Fault, FaultStore
from pulse_schemas import Head, canonical_json
from tests.support.records import RUN, Script, chain, draft, new_store, writer
from tests.support.sampling import examples

LONG = chain(150)


def snapshot_at(seq: int) -> bytes:
    return fold(RUN, LONG.records[: seq + 1]).to_snapshot().seal()


def long_run(*snapshots: int, head: bytes | None = None):
    """A store with a run of 151 records, snapshots at some of them, and a hint."""
    store = LONG.store_in(new_store())
    for seq in snapshots:
        store.put(keys.snapshot_key(seq), snapshot_at(seq))
    if head is not None:
        store.put(keys.HEAD, head)
    return store


def hint(seq: int, snapshot: int | None) -> bytes:
    return Head(seq=seq, snapshot=snapshot).seal()


def opened(store):
    """Open a run and return its state and the ledger of calls."""
    counting = CountingStore(store)
    state = LogReader(counting, RUN).refresh()
    return state, counting.ledger


def same(state) -> bool:
    return state.last == LONG.state.last and state.to_snapshot() == LONG.state.to_snapshot()


def test_a_run_that_does_not_exist_is_an_empty_state():
    reader = LogReader(new_store(), RUN)
    assert reader.refresh().seq == -1
    assert reader.snapshot_seq == -1


def test_a_run_opens_with_its_snapshot_and_only_the_records_after_it():
    state, ledger = opened(long_run(63, 127, head=hint(127, 127)))
    assert same(state)
    assert ledger == [
        ("get", keys.HEAD),
        ("get", keys.snapshot_key(127)),
        ("get", keys.record_key(127)),
        *[("get", keys.record_key(seq)) for seq in range(128, 152)],
    ]


def test_a_refresh_asks_for_new_records_alone():
    store = long_run(127, head=hint(127, 127))
    counting = CountingStore(store)
    reader = LogReader(counting, RUN)
    state = reader.refresh()
    counting.reset()
    assert reader.refresh() is state
    assert counting.ledger == [("get", keys.record_key(151))]
    script = Script()
    script.state, script.records = LONG.state.copy(), list(LONG.records)
    record = script.make_commit()
    store.put(keys.record_key(151), record.seal())
    counting.reset()
    assert reader.refresh().latest.version == 150
    assert counting.ledger == [("get", keys.record_key(151)), ("get", keys.record_key(152))]
    assert state.seq == 150, "a state that was handed out never changes"


def test_state_does_no_io_once_the_run_is_open():
    counting = CountingStore(long_run(127, head=hint(127, 127)))
    reader = LogReader(counting, RUN)
    assert same(reader.state)
    counting.reset()
    assert same(reader.state)
    assert not counting.ledger


@pytest.mark.parametrize(
    "head",
    [
        None,
        b"",
        b"garbage",
        b"\xff\xfe\x00",
        hint(127, 127)[:-1],
        hint(127, 127).replace(b"127", b"063"),
        canonical_json({"format": "pulse-head/9"}),
        hint(0, None),
        hint(2**62, None),
        hint(63, 63),
        hint(99, 100),
        hint(150, 127),
        hint(2**63 - 1, 2**63 - 1),
        hint(10**12, 10**12),
        hint(5000, 5000),
    ],
)
def test_a_hint_that_is_missing_or_lies_does_not_change_the_result(head):
    assert same(opened(long_run(63, 127, head=head))[0])


@pytest.mark.slow
@examples(40)
@given(st.one_of(st.none(), st.binary(max_size=200)), st.sets(st.integers(0, 150), max_size=3), st.data())
def test_whatever_the_hint_and_the_snapshots_are_the_result_is_the_fold_of_the_records(head, seqs, data):
    store = long_run(*seqs, head=head)
    for seq in seqs:
        damaged = bytearray(snapshot_at(seq))
        flip = data.draw(st.none() | st.integers(0, 8 * len(damaged) - 1))
        if flip is not None:
            damaged[flip // 8] ^= 1 << flip % 8
            store.put(keys.snapshot_key(seq), bytes(damaged))
    if data.draw(st.booleans()):
        seq = data.draw(st.integers(0, 200))
        store.put(keys.HEAD, hint(seq, data.draw(st.none() | st.integers(0, 200))))
    assert same(opened(store)[0])


@pytest.mark.parametrize("head", [None, b"garbage", hint(90, 90)])
def test_without_a_usable_hint_the_newest_snapshot_is_found_by_listing(head):
    state, ledger = opened(long_run(63, 127, head=head))
    assert same(state)
    assert ("list", keys.SNAPSHOTS) in ledger
    assert ("get", keys.snapshot_key(63)) not in ledger
    assert ("get", keys.record_key(0)) not in ledger


@pytest.mark.parametrize("junk", ["x", "12.json", "000000000200.json.tmp", "٠٠٠٠٠٠٠٠٠٢٠٠.json"])
def test_foreign_files_among_the_snapshots_are_passed_over(junk):
    store = long_run(127)
    store.put(keys.SNAPSHOTS + junk, b"junk")
    state, ledger = opened(store)
    assert same(state)
    assert ("get", keys.SNAPSHOTS + junk) not in ledger


def test_a_damaged_snapshot_gives_way_to_an_older_one_and_then_to_record_0(caplog):
    store = long_run(63, 127, head=hint(127, 127))
    store.put(keys.snapshot_key(127), snapshot_at(127)[:-10])
    with caplog.at_level(logging.WARNING):
        state, ledger = opened(store)
    assert same(state)
    assert ("get", keys.record_key(63)) in ledger
    assert ("get", keys.record_key(62)) not in ledger
    assert "ignoring the snapshot log/snapshots/000000000127.json" in caplog.text
    store.put(keys.snapshot_key(63), b"")
    state, ledger = opened(store)
    assert same(state)
    assert ("get", keys.record_key(0)) in ledger


def foreign(**changes) -> bytes:
    return LONG.state.to_snapshot().model_copy(update=changes).seal()


@pytest.mark.parametrize(
    "snapshot",
    [
        foreign(run="other"),
        foreign(last="0" * 64),
        foreign(seq=149),
        foreign(versions=()),
        snapshot_at(149),
    ],
)
def test_a_snapshot_that_is_not_of_this_log_is_passed_over(snapshot):
    store = long_run(63, head=hint(150, 150))
    store.put(keys.snapshot_key(150), snapshot)
    assert same(opened(store)[0])


def test_a_snapshot_ahead_of_the_log_is_passed_over():
    store = chain(20).store_in(new_store())
    store.put(keys.snapshot_key(127), snapshot_at(127))
    store.put(keys.HEAD, hint(127, 127))
    assert opened(store)[0].to_snapshot() == chain(20).state.to_snapshot()


@pytest.mark.parametrize("seq", [0, 3, 5])
def test_a_damaged_record_is_named(seq):
    store = chain(5).store_in(new_store())
    key = keys.record_key(seq)
    store.put(key, store.get(key).replace(b"math", b"mach"))
    with pytest.raises(CorruptObject, match=key):
        LogReader(store, RUN).refresh()


def test_a_record_of_a_newer_release_is_named_and_called_so():
    script = chain(2)
    store = script.store_in(new_store())
    body = script.make_commit().model_dump(mode="json") | {"kind": "rename"}
    from blake3 import blake3

    sealed = canonical_json({"blake3": blake3(canonical_json(body)).hexdigest(), "body": body})
    store.put(keys.record_key(3), sealed)
    with pytest.raises(UnsupportedFormat, match=r"log/000000000003\.json"):
        LogReader(store, RUN).refresh()


def test_a_record_that_breaks_a_rule_stops_the_reader_and_what_came_before_is_kept():
    script = chain(3)
    store = script.store_in(new_store())
    store.put(keys.record_key(4), script.make_commit(previous="0" * 64).seal())
    counting = CountingStore(store)
    reader = LogReader(counting, RUN)
    with pytest.raises(CorruptObject, match="record 4"):
        reader.refresh()
    assert reader.state.seq == 3
    counting.reset()
    with pytest.raises(CorruptObject, match="record 4"):
        reader.refresh()
    assert counting.ledger == [("get", keys.record_key(4))]


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_store_that_fails_at_any_read_is_reported_and_can_be_asked_again(nth):
    store = long_run(127, head=hint(127, 127))
    reader = LogReader(FaultStore(store, [Fault("fail_before", verb="get", nth=nth)]), RUN)
    with pytest.raises(StoreUnavailable):
        reader.refresh()
    assert same(reader.refresh())


def test_a_record_that_is_handed_over_is_folded_without_a_read():
    script = chain(3)
    store = CountingStore(chain(2).store_in(new_store()))
    reader = LogReader(store, RUN)
    reader.refresh()
    sealed = script.records[3].seal()
    store.put(keys.record_key(3), sealed)
    store.reset()
    assert reader.accept(sealed).seq == 3
    assert reader.accept(sealed).seq == 3
    assert not store.ledger


def test_a_record_that_is_handed_over_out_of_turn_brings_in_those_before_it():
    script = chain(6)
    reader = LogReader(script.store_in(new_store()), RUN)
    assert reader.accept(script.records[4].seal()).last == script.state.last


def test_threads_that_share_a_reader_all_see_the_whole_log_and_each_record_is_read_once():
    counting = CountingStore(LONG.store_in(new_store()))
    reader = LogReader(counting, RUN)
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(reader.refresh())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert all(same(state) for state in seen)
    assert counting.ledger.count(("get", keys.record_key(75))) == 1


def test_opening_a_run_costs_no_more_reads_the_longer_the_run_is():
    store = new_store()
    trainer = writer(store, snapshot_every=8)
    trainer.begin()
    worst = 0
    for number in range(100):
        trainer.commit(draft(number))
        state, ledger = opened(store)
        assert state.latest.version == number
        assert all(verb == "get" for verb, _ in ledger)
        worst = max(worst, len(ledger))
    assert worst <= 3 + 8 + RATIO


# -- a long tail, read ahead -------------------------------------------------------------------------------------------


def ahead(store) -> LogReader:
    return LogReader(store, RUN, threads=lambda count, name: ThreadPoolExecutor(count, name))


@pytest.mark.parametrize("versions", [0, 1, 14, 15, 16, 30, 31, 32, 40])
def test_a_log_that_is_read_ahead_folds_to_the_same_state(versions):
    store = new_store()
    script = chain(versions)
    script.store_in(store)
    assert ahead(store).refresh().to_snapshot() == script.state.to_snapshot()


def test_only_the_opening_reads_ahead_and_wastes_few_requests():
    inner = new_store()
    script = chain(35)
    script.store_in(inner)
    store = CountingStore(inner)
    reader = ahead(store)
    reader.refresh()
    records = [key for verb, key in store.ledger if verb == "get" and key != keys.HEAD]
    assert sorted(records) == [keys.record_key(seq) for seq in range(16 + 16 + 16)]
    store.reset()
    for _ in range(12):
        record = script.commit().records[-1]
        inner.put(keys.record_key(record.seq), record.seal(), if_absent=True)
    assert reader.refresh().seq == script.state.seq
    assert store.calls == {"get": 13}


@pytest.mark.parametrize("damaged", [3, 16, 20, 31, 32, 38])
def test_of_a_log_that_is_read_ahead_the_records_before_an_error_are_kept(damaged):
    store = new_store()
    chain(40).store_in(store)
    good = store.objects[keys.record_key(damaged)]
    store.objects[keys.record_key(damaged)] = good[:-1]
    counting = CountingStore(store)
    reader = ahead(counting)
    with pytest.raises(CorruptObject, match=keys.record_key(damaged)):
        reader.refresh()
    store.objects[keys.record_key(damaged)] = good
    counting.reset()
    assert reader.refresh().seq == 40
    first = min(key for verb, key in counting.ledger if verb == "get")
    assert first == keys.record_key(damaged)
