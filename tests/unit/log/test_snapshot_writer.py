"""Snapshots of segments: what is written opens as the fold of the records, whoever writes, dies or deletes."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import AccessDenied, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.log import LogReader, RunState
from pulse_registry.log.segments import segment_key
from pulse_registry.log.snapshot_writer import SnapshotWriter
from pulse_registry.log.superseded import KEPT, TRIES, Listed, Told, superseded
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange, Store
from pulse_registry.testing import CountingStore, Fault, FaultStore
from pulse_schemas import Head, SegmentedSnapshot, unseal_snapshot
from pulse_schemas.base import Sealed
from tests.support.records import RUN, DictStore, chain, new_store
from tests.support.sampling import examples
from tests.unit.log.histories import CountedStore, History

SEEDS = st.integers(0, 2**32 - 1)


def a_writer(store: Store) -> SnapshotWriter:
    return SnapshotWriter(store, RUN, None, lambda sealed: True)


def record(history: History, store: Store, count: int) -> None:
    for made, sealed in history.grow(count):
        store.put(keys.record_key(made.seq), sealed)


def segments_in(store: Store) -> set[str]:
    return {*store.list(keys.SEGMENTS)}


def snapshots_in(store: Store) -> list[str]:
    return [*store.list(keys.SNAPSHOTS)]


def named_in(store: Store) -> set[str]:
    found = (unseal_snapshot(store.get(key, max_bytes=1 << 30)) for key in snapshots_in(store))
    return {segment_key(ref) for one in found if isinstance(one, SegmentedSnapshot) for ref in one.segments}


def stored_once(store: CountedStore, alone: CountedStore) -> bool:
    """Tell whether nothing was stored twice, by what one writer alone stores: blocks may be cut elsewhere."""
    return store.put_bytes.get("log/segments", 0) <= 1.25 * alone.put_bytes.get("log/segments", 0) + 4_000


def check(store: Store, state: RunState, at: int | None = None) -> None:
    """A reader opens the run at snapshot ``at``, by default the state's, and finds the state."""
    reader = LogReader(store, RUN, threads=lambda count, name: ThreadPoolExecutor(count, name))
    found = reader.refresh()
    assert found.to_snapshot() == state.to_snapshot()
    assert reader.snapshot_seq == (state.seq if at is None else at)
    assert {segment.key for segment in reader.segments} <= segments_in(store)


@pytest.mark.slow
@examples(25)
@given(SEEDS, st.integers(1, 40), st.integers(1, 12), st.booleans())
def test_what_is_written_is_read_and_one_writer_leaves_nothing_behind(
    seed: int, every: int, times: int, collect: bool
) -> None:
    history, store = History(seed, collect=collect), new_store()
    writing = a_writer(store)
    for _ in range(times):
        record(history, store, every)
        assert writing.write(history.state.copy())
        check(store, history.state)
    assert len(snapshots_in(store)) == min(KEPT, times)
    assert segments_in(store) == named_in(store)


@pytest.mark.slow
@examples(25)
@given(SEEDS, st.integers(2, 4), st.integers(2, 14))
def test_writers_who_take_turns_go_on_from_each_other_s_snapshots(seed: int, writers: int, times: int) -> None:
    chance = random.Random(seed)
    history, store = History(seed), CountedStore()
    all_of_them = [a_writer(store) for _ in range(writers)]
    alone = CountedStore()
    one = a_writer(alone)
    for _ in range(times):
        record(history, store, chance.randrange(1, 40))
        chance.choice(all_of_them).write(history.state.copy())
        one.write(history.state.copy())
        check(store, history.state)
    assert segments_in(store) == named_in(store)
    assert stored_once(store, alone)


@pytest.mark.slow
@examples(25)
@given(SEEDS, st.integers(1, 30), st.data())
def test_a_reader_goes_on_as_a_writer_from_the_snapshot_that_it_opened_at(
    seed: int, every: int, data: st.DataObject
) -> None:
    history, store = History(seed), CountedStore()
    alone = CountedStore()
    one = a_writer(alone)
    for _ in range(data.draw(st.integers(1, 8))):
        record(history, store, every)
        reader = LogReader(store, RUN)
        state = reader.refresh()
        writing = a_writer(store)
        writing.begin(reader.snapshot_seq, reader.segments)
        writing.write(state)
        one.write(history.state.copy())
        check(store, history.state)
    assert stored_once(store, alone)


@pytest.mark.slow
@examples(15)
@given(SEEDS, st.integers(1, 12), st.sampled_from(["fail_before", "fail_after"]), st.sampled_from(["put", "delete"]))
def test_a_writer_that_dies_anywhere_leaves_a_run_that_opens_and_the_next_one_cleans_up(
    seed: int, nth: int, fault: str, verb: str
) -> None:
    history, store = History(seed), new_store()
    faulty = FaultStore(store, [Fault(fault, verb=verb, nth=nth)])
    writing: SnapshotWriter | None = a_writer(faulty)
    newest = -1
    for _ in range(7):
        record(history, store, 20)
        if writing is not None:
            try:
                writing.write(history.state.copy())
                newest = history.state.seq
            except StoreUnavailable:
                writing = None
                if keys.snapshot_key(history.state.seq) in snapshots_in(store):
                    newest = history.state.seq
        check(store, history.state, at=newest)
    again = a_writer(store)
    for _ in range(KEPT + 1):
        record(history, store, 3)
        again.write(history.state.copy())
        check(store, history.state)
    assert len(snapshots_in(store)) == KEPT
    assert segments_in(store) == named_in(store)


def many(store: Store) -> History:
    """A run with two snapshots, of which the second shares segments with the first."""
    history = History(1, collect=False)
    writing = a_writer(store)
    for _ in range(2):
        record(history, store, 40)
        writing.write(history.state.copy())
    return history


def own_segments(store: Store) -> list[str]:
    """The segments that the newest snapshot alone names."""
    first, second = (unseal_snapshot(store.get(key, max_bytes=1 << 30)) for key in snapshots_in(store))
    assert isinstance(first, SegmentedSnapshot)
    assert isinstance(second, SegmentedSnapshot)
    return [segment_key(ref) for ref in second.segments if ref not in first.segments]


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "longer", "empty"])
def test_a_snapshot_with_a_segment_that_is_gone_or_damaged_gives_way_to_the_one_before(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = new_store()
    history = many(store)
    key = own_segments(store)[0]
    data = bytearray(store.objects.pop(key))
    data[len(data) // 2] ^= 1
    if damage != "gone":
        store.objects[key] = {"cut": bytes(data[:-9]), "flipped": bytes(data), "longer": bytes(data) + b"x"}.get(
            damage, b""
        )
    with caplog.at_level(logging.WARNING):
        check(store, history.state, at=39)
    assert "ignoring the snapshot log/snapshots/000000000079.json" in caplog.text
    for key in segments_in(store):
        store.delete(key)
    check(store, history.state, at=-1)


def test_a_segment_that_is_gone_is_written_again_by_the_next_snapshot() -> None:
    store = new_store()
    history = History(1, collect=False)
    writing = a_writer(store)
    for _ in range(3):
        record(history, store, 20)
        writing.write(history.state.copy())
        for key in segments_in(store):
            store.delete(key)
    record(history, store, 20)
    writing.write(history.state.copy())
    check(store, history.state)


def test_segments_of_another_story_are_not_taken_over() -> None:
    """What another writer stored is used only if it says what this one folded: here, of other objects' hashes."""
    store = new_store()
    mine, other = chain(40), chain(40)
    lie = other.state.tables.patches.row(7)
    assert lie.object.blake3 == "c" * 64
    record_of = other.records[9].model_copy(
        update={"patch": lie.model_copy(update={"object": lie.object.model_copy(update={"blake3": "0" * 64})})}
    )
    forged = chain(8).state
    for made in (record_of, *other.records[10:]):
        forged.apply(made)
        forged.seq = made.seq
    forged.last = "0" * 64
    a_writer(store).write(forged)
    (theirs,) = segments_in(store)
    mine.store_in(store)
    honest = a_writer(store)
    honest.write(mine.state)
    check(store, mine.state)
    assert theirs not in named_in(store)


def test_a_writer_that_may_delete_nothing_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Undeletable(DictStore):
        def delete(self, key: str) -> None:
            raise AccessDenied(f"{key}: no")

    store = CountingStore(Undeletable())
    history = History(3)
    writing = a_writer(store)
    for _ in range(5):
        record(history, store, 20)
        assert writing.write(history.state.copy())
        check(store, history.state)
    assert store.calls["delete"] == 1, "it does not ask again and again"
    assert len(snapshots_in(store)) == 5


class LateStore(DictStore):
    """A store in which something happens between the reading of the first snapshot and that of its segments."""

    def __init__(self) -> None:
        super().__init__()
        self.happens: Callable[[], None] | None = None

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        data = super().get(key, byte_range, max_bytes=max_bytes)
        if self.happens is not None and keys.snapshot_seq(key) is not None:
            happens, self.happens = self.happens, None
            happens()
        return data


def test_who_reads_a_snapshot_that_goes_meanwhile_opens_a_newer_one() -> None:
    store, history = LateStore(), History(5, collect=False)
    writing = a_writer(store)

    def go_on(snapshots: int) -> None:
        for _ in range(snapshots):
            record(history, store, 64)
            writing.write(history.state.copy())

    go_on(9)
    hinted = history.state.seq
    store.put(keys.HEAD, Head(seq=hinted, snapshot=hinted).seal())
    store.happens = lambda: go_on(12)
    reader = LogReader(store, RUN)
    assert reader.refresh().to_snapshot() == history.state.to_snapshot()
    assert keys.snapshot_key(hinted) not in snapshots_in(store)
    assert reader.snapshot_seq == history.state.seq


def listed(*snapshots: int, segments: tuple[str, ...] = ()) -> Listed:
    return Listed(snapshots, frozenset(segments))


def test_what_is_superseded_is_old_snapshots_and_what_the_kept_ones_do_not_name() -> None:
    store = new_store()
    names = {seq: keys.segment_key(seq, f"{seq:064x}") for seq in (5, 9, 15, 21)}
    there = listed(5, 9, 15, 30, segments=tuple(names.values()))
    known = {
        5: Told(None, frozenset({names[5]})),
        9: Told(None, frozenset({names[5]})),
        15: Told(None, frozenset({names[5], names[15]})),
    }
    # 21 may be one that is written right now, and who wrote snapshot 30 knows more.
    assert superseded(store, there, 20, known) == [keys.snapshot_key(5), names[9]]
    assert superseded(store, listed(), 20, {}) == []
    store.put(keys.snapshot_key(15), b"damaged")
    del known[15]
    assert superseded(store, there, 20, known) == [keys.snapshot_key(15)], "nobody can open it"
    store.put(keys.snapshot_key(15), chain(16).state.to_snapshot().seal())
    assert superseded(store, there, 20, known) == [keys.snapshot_key(5), names[9]], "an older format names none"


def test_the_newest_snapshots_of_each_key_stay() -> None:
    """Readers who pin one of the keys believe no other, and would have to fold the whole log."""
    known = {seq: Told("ours" if seq < 20 else None, frozenset()) for seq in (3, 7, 11, 23, 27, 31)}
    assert superseded(new_store(), listed(*known), 31, known) == [keys.snapshot_key(seq) for seq in (3, 23)]


def test_snapshots_that_no_reader_would_look_at_go_unread() -> None:
    store = CountingStore(new_store())
    assert superseded(store, listed(*range(100)), 99, {}) == [keys.snapshot_key(seq) for seq in range(100)]
    assert store.calls == {"get": TRIES}


def test_a_snapshot_of_a_newer_release_stays_and_all_segments_with_it() -> None:
    store = new_store()
    newer = chain(3).state.to_snapshot().canonical().replace(b"pulse-snapshot/2", b"pulse-snapshot/9")
    store.put(keys.snapshot_key(15), Sealed(newer).to_bytes())
    segment = keys.segment_key(3, "0" * 64)
    assert superseded(store, listed(15, segments=(segment,)), 20, {}) == []
