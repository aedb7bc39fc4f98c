"""Pulls of slices from a keyframe: they fetch its pieces, share them on a host, and go round a keyframe that is bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pulse_registry import CorruptObject, PullResult, Slice
from pulse_registry.cache import CacheFolder
from pulse_registry.events import Event, EventKind
from pulse_registry.format.keyframe import KeyframeForm
from pulse_registry.options import Options
from pulse_registry.push import keyframe as push_keyframe
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.testing import CountingStore
from tests.support.records import DictStore
from tests.support.registries import RUN, quick

ROWS, COLUMNS, PIECE = 64, 1000, 4096


@pytest.fixture(params=["raw", "exponents"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[DictStore, np.ndarray[Any, Any]]:
    """Return a run of version 0, and version 1 with a keyframe of its own, and version 1's cells."""

    def form(coding: Any) -> KeyframeForm:
        return KeyframeForm(coding, piece_bytes=PIECE)

    monkeypatch.setattr(push_keyframe, "KeyframeForm", form)
    store = DictStore()
    cells = np.random.default_rng(2).integers(0, 2**16, (ROWS, COLUMNS), dtype=np.uint16)
    with quick(store, keyframe_every=1, keyframe_coding=request.param) as registry:
        for step in range(2):
            registry.push(step, {"w": cells})
            cells[step, :3] += 1 - step
    return store, cells


def newest_shard(store: DictStore) -> str:
    """Return the key of the keyframe of version 1."""
    return max(key for key in store.objects if "/keyframe/" in key and "model-00001" in key)


def pull(registry: Registry, cells: np.ndarray[Any, Any], rows: slice) -> PullResult:
    part = np.zeros_like(cells[rows])
    result = registry.pull(1, into={"w": Slice(part, of=cells.shape, at=(rows.start, 0))})
    assert np.array_equal(part, cells[rows])
    return result


def test_an_eighth_of_the_rows_takes_little_more_than_an_eighth_of_the_bytes(
    run: tuple[DictStore, np.ndarray[Any, Any]],
) -> None:
    store, cells = run
    counting = CountingStore(store)
    with quick(counting) as registry:
        pull(registry, cells, slice(24, 32))
    shard = newest_shard(store)
    # 16,000 bytes lie in at most 5 pieces of 4,096.
    assert [key for _, key in counting.ledger].count(shard) <= 5
    assert len(store.objects[shard]) > 20 * PIECE


def test_a_piece_that_is_damaged_makes_slices_take_another_route_and_pieces_that_are_not_read_do_not(
    run: tuple[DictStore, np.ndarray[Any, Any]],
) -> None:
    store, cells = run
    shard, events = newest_shard(store), list[Event]()
    whole = bytearray(store.objects[shard])
    whole[-1] ^= 1
    store.objects[shard] = bytes(whole)
    with quick(store, on_event=events.append) as registry:
        assert pull(registry, cells, slice(0, 8)).avoided == ()
    with quick(store, on_event=events.append) as registry:
        assert pull(registry, cells, slice(56, 64)).avoided == (shard.removeprefix(f"{RUN}/"),)
    assert [event.kind for event in events] == [EventKind.OBJECT_AVOIDED]
    for key in store.objects:
        if "/patch/" in key:
            store.objects[key] = bytes(len(store.objects[key]))
    with quick(store) as registry, pytest.raises(CorruptObject, match=shard.rpartition("/")[2]):
        pull(registry, cells, slice(56, 64))


def test_the_ranks_of_a_host_fetch_each_piece_once(run: tuple[DictStore, np.ndarray[Any, Any]], tmp_path: Path) -> None:
    store, cells = run
    counting = CountingStore(store)
    for _ in range(2):
        for start in (0, 4, 8):  # their ends share pieces
            options = Options(push=PushOptions(dtype="keep"), cache=CacheFolder(tmp_path))
            with Registry(counting, RUN, options) as registry:
                pull(registry, cells, slice(start, start + 4))
    shard = newest_shard(store)
    # 24,000 bytes, and a header of about 100 before them.
    assert [key for _, key in counting.ledger].count(shard) == 6
