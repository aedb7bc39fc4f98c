"""The digest of a keyframe that was summed while it landed is that of a pass over its cells, however its bytes came."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import get_backend
from pulse_registry.errors import CorruptObject
from pulse_registry.format.keyframe import KeyframeForm
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.pull import fetch
from pulse_registry.pull.keyframe_cells import KeyframeCells
from pulse_registry.pull.landing_digest import LandingDigest
from pulse_schemas.layout import DTYPE_ORDER
from tests.support.partial_keyframes import PIECE, Stored

TENSORS = st.lists(
    st.tuples(
        st.sampled_from([dtype for dtype in DTYPE_ORDER if dtype != "F4"]),
        st.one_of(
            st.just(()), st.tuples(st.integers(0, 9)), st.tuples(st.integers(1, 40), st.sampled_from([0, 60, 203]))
        ),
    ),
    min_size=1,
    max_size=9,
)
FORMS = st.builds(
    KeyframeForm,
    st.sampled_from(["raw", "exponents"]),
    st.sampled_from([1, 3000, 20_000, 1 << 30]),
    st.sampled_from([4096, 4098, 5000, 8192, 1 << 16]),  # some of them end within cells
)


def fetched(stored: Stored, *, in_memory: bool, spool: Path | None = None, map_: Any = map) -> KeyframeCells:
    backend = get_backend("reference")
    return KeyframeCells.fetch(
        stored.store, stored.geometry, stored.ref, map_, spool, in_memory=in_memory, backend=backend
    )


@pytest.mark.slow
@settings(max_examples=100)
@given(TENSORS, FORMS, st.booleans(), st.sampled_from([0, 3]), st.sampled_from([1, 2, 5]))
def test_the_sum_of_what_has_landed_is_that_of_a_pass(
    tensors: Any, form: KeyframeForm, in_memory: bool, threads: int, together: int
):
    stored = Stored(tensors, form, 7)
    with ThreadPoolExecutor(max(1, threads)) as pool, pytest.MonkeyPatch.context() as patched:
        patched.setattr(fetch, "pieces_a_request", lambda ref, pieces: together)
        keyframe = fetched(stored, in_memory=in_memory, map_=ParallelMap(pool) if threads else map)
    assert keyframe.known is not None
    assert keyframe.known == keyframe.weights.digest(get_backend("reference"), map)
    keyframe.close()


@given(TENSORS, FORMS, st.integers(0, 99))
def test_pieces_are_summed_in_any_order(tensors: Any, form: KeyframeForm, seed: int):
    stored = Stored(tensors, form, 7)

    def shuffled(function: Any, items: Any) -> Any:
        rows = list(items)
        random.Random(seed).shuffle(rows)
        return map(function, rows)

    keyframe = fetched(stored, in_memory=True, map_=shuffled)
    assert keyframe.known == keyframe.weights.digest(get_backend("reference"), map)


def test_nothing_is_known_of_whole_shards_and_of_an_index_that_does_not_say_where_cells_lie():
    stored = Stored([("BF16", (90, 100)), ("F32", (70, 20))], KeyframeForm("raw", 20_000, PIECE), 1)
    digest = LandingDigest(stored.geometry, get_backend("reference"))
    digest.add(0, 0, memoryview(b""))
    assert digest.total([]) is None
    stored.without_pieces()
    assert fetched(stored, in_memory=True).known is None


def test_a_part_that_an_earlier_pull_had_fetched_is_summed_as_well(tmp_path: Path):
    stored = Stored([("BF16", (90, 100)), ("F32", (70, 20))], KeyframeForm("raw", 20_000, PIECE), 1)

    def three(function: Any, items: Any) -> Any:
        for number, item in enumerate(items):
            if number == 3:
                raise KeyboardInterrupt
            function(item)
        return iter(())

    with pytest.raises(KeyboardInterrupt):
        fetched(stored, in_memory=False, spool=tmp_path, map_=three)
    before = len(stored.store.ranges)
    keyframe = fetched(stored, in_memory=False, spool=tmp_path)
    assert len(stored.store.ranges) < 2 * before + sum(-(-shard.size // PIECE) for shard in stored.ref.shards) - 3
    assert keyframe.known == keyframe.weights.digest(get_backend("reference"), map)
    keyframe.close()


def test_a_piece_that_is_damaged_is_not_summed():
    stored = Stored([("BF16", (90, 100))], KeyframeForm("raw", 1 << 30, PIECE), 1)
    key = stored.ref.shards[0].key
    data = bytearray(stored.store.objects[key])
    data[PIECE + 5] ^= 1
    stored.store.objects[key] = bytes(data)
    with pytest.raises(CorruptObject, match="piece 1"):
        fetched(stored, in_memory=True)
