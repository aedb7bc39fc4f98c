"""How a state grows with a run's versions, by what is called and what is allocated. Times are the benchmark's."""

from __future__ import annotations

import gc
import math
import random
import tracemalloc
from collections.abc import Callable
from functools import cache
from itertools import islice

import numpy as np
import pytest

from benchmarks.growth.state import records
from pulse_registry.compaction.ladder import CompactOptions, due
from pulse_registry.errors import CorruptObject
from pulse_registry.log import RunState
from pulse_registry.log.block import Block
from pulse_registry.log.keyframe_due import keyframe_due
from pulse_registry.log.table import Table
from pulse_registry.log.tables import Tables
from pulse_schemas import PatchRef, Record, VersionEntry
from tests.support.counting import calls

SMALL, LARGE = 400, 4_000
OPTIONS = CompactOptions(keyframe_every=10**9)


def folded(state: RunState, log: list[Record]) -> RunState:
    for record in log:
        state = state.copy()
        state.apply(record)
        state.seq, state.last = record.seq, "0" * 64
    return state


@cache
def a_run(versions: int) -> tuple[RunState, list[Record]]:
    """Return the state of a run of so many versions, and the records that come next."""
    log = records(random.Random(5))
    state = RunState("long")
    while len(state.versions) < versions:
        state = folded(state, [next(log)])
    return state, [*islice(log, 128)]


def exponent(cost: Callable[[int], float]) -> float:
    """Return the slope from a small run to one of ten times as many versions: 0 is flat, 1 is linear."""
    return math.log(cost(LARGE) / cost(SMALL)) / math.log(LARGE / SMALL)


@pytest.mark.slow
def test_a_push_does_the_same_late_in_a_run_as_early() -> None:
    def pushes(versions: int) -> float:
        state, log = a_run(versions)

        def push() -> None:
            now = state
            for record in log:
                now = folded(now, [record])
                keyframe_due(now, 10**9, every=None, share=10.0**9)
                assert len([*due(now, OPTIONS, len(now.versions) - 2)]) < 20

        return calls(push)

    assert exponent(pushes) < 0.05


def test_a_copy_takes_no_more_of_a_long_run_than_of_a_short_one() -> None:
    def copied(versions: int) -> float:
        state, _ = a_run(versions)
        gc.collect()
        tracemalloc.start()
        copy = state.copy()
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(copy.versions) == versions
        return held

    assert exponent(copied) < 0.05


def opened(state: RunState, *, damaged: tuple[str, ...] = ()) -> RunState:
    """Return the state as it is opened from what was stored of it; rows of some kinds are there, but can't be read."""
    tables = []
    for table in vars(state.tables).values():
        blocks = table.blocks(0, len(table))
        if table.kind.name in damaged:
            blocks = (Block(rows, frame[:-8] + bytes(8)) for rows, frame, _ in blocks)
        tables.append(Table.of(table.kind, table.numbers.copy(), blocks))
    fields = {"seq": state.seq, "last": "0" * 64, "epoch": state.epoch, "count": len(state.versions)}
    return RunState.of(Tables(*tables), run="long", **fields, tags={}, retired_versions={}, retired_keys={})  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_version_takes_at_most_400_bytes_with_its_patch_and_merged_ones() -> None:
    def held(versions: int) -> int:
        state, _ = a_run(versions)
        gc.collect()
        tracemalloc.start()
        mine = opened(state)
        frames = [len(block.frame) for table in vars(mine.tables).values() for block in table.blocks(0, len(table))]
        # With the orders that rows are found by.
        assert mine.patches_into(versions - 1)
        assert mine.patches_from(0)
        assert mine.by_step(7)
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return taken + sum(frames)  # of the frames the two states have the same bytes

    assert (held(2 * LARGE) - held(LARGE)) / LARGE < 400


def test_who_goes_through_a_run_leaves_no_object_of_a_row_behind() -> None:
    def held() -> int:
        gc.collect()
        # By its type alone: what other tests left may be a proxy of something that is gone.
        return sum(type(one) in (PatchRef, VersionEntry) for one in gc.get_objects())

    state = opened(a_run(SMALL)[0])
    before = held()
    assert all(state.is_live(patch.object.key) for patch in state.patches)
    assert len([*state.versions_since(0)]) == SMALL
    assert held() <= before


def test_no_version_and_no_patch_is_read_to_open_a_state_and_only_those_of_a_route_to_find_it() -> None:
    state, _ = a_run(LARGE)
    unread = opened(state, damaged=("versions", "patches"))
    assert unread.keyframe_lag == state.keyframe_lag
    assert not unread.is_retired(LARGE - 1)
    edges = unread.edges
    assert len(edges.graph().cheapest(LARGE - 1, {0: 0}, 65536, from_nothing=False).rows) > 3
    with pytest.raises(CorruptObject, match="block of rows is damaged"):
        edges.legs(np.array([0]))
    with pytest.raises(CorruptObject, match="block of rows is damaged"):
        unread.version(LARGE // 2)


def test_the_columns_of_a_state_are_what_its_rows_say() -> None:
    state, _ = a_run(SMALL)
    again = opened(state)
    assert again.to_snapshot() == state.to_snapshot()
    assert again.keyframe_lag == state.keyframe_lag
    assert np.array_equal(again.edges.end, state.edges.end)
