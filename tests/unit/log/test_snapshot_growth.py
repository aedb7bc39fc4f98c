"""What snapshots cost as a run grows: counted bytes and store calls, not times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.log import LogReader, LogWriter, Snapshotter
from pulse_registry.log.segment_merges import BOUNDS, RATIO
from pulse_registry.testing import CountingStore
from pulse_schemas import CommitRecord
from tests.support.records import RUN, chain, clock, ids
from tests.support.sampling import examples
from tests.unit.log.histories import CountedStore, History


class Run:
    """A history whose records are put and folded, and whose snapshots are written when they are due."""

    def __init__(self, seed: int, *, collect: bool = False, metadata: int = 0, every: int = 64) -> None:
        self.store = CountedStore()
        self.calls = CountingStore(self.store)
        self.history = History(seed, collect=collect, metadata=metadata)
        self.reader = LogReader(self.calls, RUN)
        self.snapshotter = Snapshotter(self.calls, self.reader, snapshot_every=every)
        self.most_tail = 0

    def grow(self, count: int) -> None:
        for record, sealed in self.history.grow(count):
            self.store.put(f"log/{record.seq:012d}.json", sealed)
            self.reader.accept(sealed)
            self.snapshotter.appended(record)
            newest = max((int(key[-17:-5]) for key in self.store.list("log/snapshots/")), default=-1)
            self.most_tail = max(self.most_tail, record.seq - newest)

    @property
    def share(self) -> float:
        """Bytes of snapshots and segments, by those of records."""
        written = self.store.put_bytes
        return (written.get("log/snapshots", 0) + written.get("log/segments", 0)) / written["log"]


@pytest.mark.slow
@examples(4)
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([0, 40, 2_000]))
def test_over_a_run_s_life_snapshots_have_at_most_four_times_the_bytes_of_the_records(
    seed: int, collect: bool, metadata: int
) -> None:
    run = Run(seed, collect=collect, metadata=metadata)
    run.grow(600)
    assert run.share <= 4
    assert run.most_tail <= 2 * 64
    assert len([*run.store.list("log/segments/")]) <= 2 * RATIO * len(BOUNDS)
    opened = LogReader(run.store, RUN)
    assert opened.refresh().to_snapshot() == run.history.state.to_snapshot()
    assert opened.snapshot_seq >= run.history.state.seq - 2 * 64


@pytest.mark.slow
def test_the_bytes_of_snapshots_grow_as_the_records_do() -> None:
    run = Run(1)
    run.grow(200)
    before, few = sum(run.store.put_bytes.values()), 200
    run.grow(1_800)
    exponent = math.log(sum(run.store.put_bytes.values()) / before) / math.log(2_000 / few)
    assert exponent < 1.15, "each snapshot holding the whole state would make it 2"


@pytest.mark.slow
def test_a_snapshot_s_calls_do_not_grow_with_the_run() -> None:
    run = Run(2)
    worst = []
    for _ in range(6):
        run.calls.reset()
        run.grow(128)
        worst.append(sum(run.calls.calls.values()) / 2)
    # A LIST, the segment, the snapshot, the hint; deleted: a snapshot, and at times RATIO segments that became one.
    assert max(worst) <= 6 + RATIO / 2


@pytest.mark.slow
def test_many_tags_put_a_snapshot_off_until_as_much_has_happened() -> None:
    """10^4 names would otherwise be written again every 64 records."""
    store = CountedStore()
    script = chain(2)
    for number in range(4_000):
        script.state.apply(script.make_tag(name=f"t{number}", version=number % 2))
    reader = LogReader(script.store_in(store), RUN)
    reader.refresh()
    for name, version in script.state.tags.items():
        reader.state.apply(script.make_tag(name=name, version=version))
    trainer = LogWriter(store, RUN, reader, clock(), ids(), "w")
    trainer.begin()
    before = store.put_bytes.copy()
    for number in range(1_000):
        trainer.tag("best", number % 2)
    snapshots = store.put_bytes["log/snapshots"] - before.get("log/snapshots", 0)
    assert snapshots <= 2 * (store.put_bytes["log"] - before["log"]) + 100_000
    assert snapshots, "it is written in the end"


@pytest.mark.parametrize("kilobytes", [8, 100])
def test_rows_of_any_length_open_and_cost_no_more_than_four_times_theirs(kilobytes: int) -> None:
    run = Run(4, metadata=kilobytes << 10)
    run.grow(200)
    assert any(isinstance(record, CommitRecord) for record in run.history.records)
    assert run.share <= 4
    assert LogReader(run.store, RUN).refresh().to_snapshot() == run.history.state.to_snapshot()
