"""What a push of ranks costs in requests: its objects, its record, and next to nothing a rank."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from pulse_registry import Registry, Slice
from pulse_registry.testing import CountingStore
from tests.support.gate import PATIENCE
from tests.support.groups import small_groups
from tests.support.parts import small_parts
from tests.support.ranks import on_ranks
from tests.support.records import DictStore
from tests.support.registries import commits, quick, settle

ROWS = 40


def columns(state: np.ndarray[Any, Any], rank: int, ranks: int) -> dict[str, Any]:
    """Return one rank's columns of a tensor, so that each rank holds cells of each group."""
    width = state.shape[1]
    first, stop = width * rank // ranks, width * (rank + 1) // ranks
    return {"w": Slice(np.ascontiguousarray(state[:, first:stop]), of=state.shape, at=(0, first))}


def states(count: int) -> list[np.ndarray[Any, Any]]:
    """Return states of which each has other cells in every row than the one before."""
    rng = np.random.default_rng(0)
    made = [rng.integers(0, 2**15, (ROWS, 32), dtype=np.uint16)]
    while len(made) < count:
        made.append(made[-1].copy())
        made[-1][np.arange(ROWS), rng.integers(32, size=ROWS)] += 1
    return made


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("parts", [True, False])
def test_a_later_push_costs_its_objects_its_record_and_at_most_two_requests(ranks: int, parts: bool) -> None:
    """Also the one after a keyframe was attached; it fails if each rank reads what the coordinator has written."""
    store, wanted = CountingStore(DictStore()), states(5)
    meet = threading.Barrier(ranks, action=store.reset, timeout=PATIENCE)
    counted: list[list[tuple[str, str]]] = []
    read = threading.Barrier(ranks, action=lambda: counted.append(list(store.ledger)), timeout=PATIENCE)

    def push(registry: Registry, rank: int) -> None:
        for step, state in enumerate(wanted):
            meet.wait()
            registry.push(step, columns(state, rank, ranks))
            settle(registry)
            read.wait()

    with ExitStack() as small:
        small.enter_context(small_groups())
        if parts:
            small.enter_context(small_parts(groups=4))
        assert on_ranks([store] * ranks, push, coder="gap", keyframe_every=3, keyframe_share=1e9) == [None] * ranks
    assert [record.version for record in commits(store)] == list(range(5))
    for version in (1, 2, 4):  # 3 has a keyframe behind it
        made = [key for verb, key in counted[version] if verb == "put"]
        objects = [key for key in made if "/objects/patch/" in key]
        records = [key for key in made if "/log/" in key]
        assert len(objects) == (ROWS // 4 + 1 if parts else 1)
        assert len(records) == 1
        more = len(counted[version]) - len(objects) - len(records)
        assert more <= 2, (version, counted[version])


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_record_that_another_writer_appended_is_read_by_the_coordinator_alone(ranks: int) -> None:
    store, wanted = DictStore(), states(4)
    stores = [CountingStore(store) for _ in range(ranks)]
    meet = threading.Barrier(ranks, timeout=PATIENCE)

    def push(registry: Registry, rank: int) -> None:
        for step, state in enumerate(wanted):
            if step == 2:
                meet.wait()
                if rank == 0:
                    with quick(store) as other:
                        other.tag("good", 1)
                    for one in stores:
                        one.reset()
                meet.wait()
            registry.push(step, columns(state, rank, ranks))

    assert on_ranks(stores, push, coder="gap", keyframe_share=1e9) == [None] * ranks
    assert [record.version for record in commits(store)] == list(range(4))
    assert [one.ledger for one in stores[1:]] == [[]] * (ranks - 1)
