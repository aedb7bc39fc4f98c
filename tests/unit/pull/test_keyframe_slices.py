"""A keyframe in part: the cells are those of the whole, each comes once, and no piece is fetched that holds none."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES, Cells
from pulse_registry.errors import CorruptObject, NotFound, StoreUnavailable, UnsupportedFormat
from pulse_registry.format.keyframe import INDEX_NAME, KeyframeForm, shards_of
from pulse_registry.format.safetensors import parse_head
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.pull.keyframe_cells import KeyframeCells
from pulse_registry.pull.keyframe_slices import fetch_cells
from pulse_registry.store import ByteRange
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import Layout, Tensor
from pulse_schemas.layout import DTYPE_ORDER, Dtype
from tests.support.partial_keyframes import PIECE, Masks, Stored, Taken

# -- any layout, any form, any cells -----------------------------------------------------------------------------------


SHAPES: st.SearchStrategy[tuple[int, ...]] = st.one_of(
    st.just(()),
    st.tuples(st.integers(0, 9)),
    st.tuples(st.integers(1, 40), st.sampled_from([0, 1, 60, 203])),
    st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 300)),
)
TENSORS = st.lists(st.tuples(st.sampled_from(DTYPE_ORDER), SHAPES), min_size=1, max_size=9).map(
    lambda tensors: [(dtype, shape or ((1,) if dtype == "F4" else ())) for dtype, shape in tensors]
)


@dataclass(frozen=True)
class Case:
    stored: Stored
    masks: Masks
    threads: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    coding = draw(st.sampled_from(["raw", "exponents"]))
    # Pieces of some of these sizes end within cells.
    pieces = [4096, 4098, 4100, 5000, 8192, 1 << 16] + ([4097, 4099] if coding == "raw" else [])
    form = KeyframeForm(coding, draw(st.sampled_from([1, 3000, 20_000, 1 << 30])), draw(st.sampled_from(pieces)))
    stored = Stored(draw(TENSORS), form, draw(st.integers(0, 99)))
    runs = []
    for tensor, size in enumerate(stored.geometry.sizes):
        for _ in range(draw(st.sampled_from([0, 0, 1, 1, 3]))):
            start = draw(st.integers(0, size))
            runs.append((tensor, start, start + draw(st.sampled_from([1, 2, 30, size]))))
    return Case(stored, stored.masks(*runs), draw(st.sampled_from([0, 3])))


@pytest.mark.slow
@settings(max_examples=150)
@given(cases(), st.booleans())
def test_wanted_cells_come_once_and_pieces_without_them_are_not_fetched(case: Case, listed: bool):
    stored, masks = case.stored, case.masks
    expected = stored.expected(masks)
    if not listed and stored.form.coding == "raw":
        stored.without_pieces()
        sizes = {shard.key: shard.size for shard in stored.ref.shards}
        expected = [(key, (0, sizes[key])) for key in dict.fromkeys(key for key, _ in expected)]
    if case.threads:
        with ThreadPoolExecutor(case.threads) as pool:
            _, nbytes = stored.fetch(masks, ParallelMap(pool))
    else:
        _, nbytes = stored.fetch(masks)
    index = (stored.ref.index.key, (0, stored.ref.index.size))
    assert stored.store.ranges[0] == index
    assert sorted(stored.store.ranges[1:]) == sorted(expected)
    assert nbytes == sum(stop - start for _, (start, stop) in [index, *expected])


def test_all_cells_are_those_of_the_whole_keyframe_and_of_none_only_the_index_is_read():
    for coding in ("raw", "exponents"):
        stored = Stored(
            [("BF16", (90, 100)), ("F32", (70, 20)), ("U8", (0, 3)), ("I64", ())], KeyframeForm(coding, 20_000, PIECE)
        )
        whole = KeyframeCells.fetch(stored.store, stored.geometry, stored.ref, map, None)
        every = [np.ones(size, np.bool_) for size in stored.geometry.sizes]
        taken, nbytes = stored.fetch(every)
        assert [cells.tobytes() for cells in taken.cells] == [cells.tobytes() for cells in whole.weights.arrays]
        assert nbytes == stored.ref.size
        whole.close()
        _, nbytes = stored.fetch(stored.masks())
        assert nbytes == stored.ref.index.size
        assert [key for key, _ in stored.store.ranges] == [stored.ref.index.key]


@given(TENSORS, st.sampled_from([1, 3000, 1 << 30]))
def test_headers_are_as_long_as_keeps_every_cell_whole_in_pieces_of_a_multiple_of_eight(
    tensors: list[tuple[Dtype, tuple[int, ...]]], shard_bytes: int
):
    ordered = sorted(tensors, key=lambda tensor: DTYPE_ORDER.index(tensor[0]))
    layout = tuple(Tensor(name=f"é{n:02}", dtype=dtype, shape=shape) for n, (dtype, shape) in enumerate(ordered))
    geometry = Geometry(Layout(tensors=layout))
    for shard in shards_of(geometry, shard_bytes):
        at = len(shard.header)
        assert at % 8 == 0
        for tensor in range(shard.first, shard.last):
            assert at % CELL_TYPES[layout[tensor].dtype].width == 0
            at += geometry.tensor_bytes(tensor)
        assert at == shard.nbytes


@pytest.mark.parametrize("coding", ["raw", "exponents"])
@pytest.mark.parametrize("dtype", ["F64", "F32"])
def test_a_cell_that_a_piece_cuts_is_handed_over_of_both_and_neither_alone_is_asked_for_it(coding: Any, dtype: Dtype):
    piece = PIECE + 2
    stored = Stored([(dtype, (6000,)), ("U8", (9,))], KeyframeForm(coding, piece_bytes=piece))
    width, header = CELL_TYPES[dtype].width, parse_head(stored.plain[0], len(stored.plain[0])).nbytes
    cut = 0
    for boundary in range(piece, len(stored.plain[0]), piece):
        cell, within = divmod(boundary - header, width)
        masks = stored.masks((0, cell, cell + 1))
        expected = stored.expected(masks)
        assert len(expected) == (2 if within else 1)
        stored.fetch(masks)
        assert sorted(stored.store.ranges[1:]) == sorted(expected)
        cut += bool(within)
    assert cut >= 2


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["raw", "exponents"])
def stored(request: pytest.FixtureRequest) -> Stored:
    """Return a keyframe of two shards of 5 and 3 pieces."""
    return Stored([("BF16", (9000,)), ("U8", (9000,))], KeyframeForm(request.param, 10_000, PIECE))


@pytest.fixture
def plain() -> Stored:
    return Stored([("BF16", (9000,)), ("U8", (9000,))], KeyframeForm("raw", 10_000, PIECE))


def test_a_piece_that_was_damaged_on_the_way_is_fetched_again_alone(stored: Stored):
    masks = stored.masks((0, 3000, 8000), (1, 0, 1))
    expected = stored.expected(masks)
    left = {expected[1][1], expected[-1][1]}

    def answer(key: str, part: ByteRange, data: bytes) -> bytes:
        if part in left and not key.endswith(INDEX_NAME):
            left.remove(part)
            return data[:-1] + bytes([data[-1] ^ 1])
        return data

    stored.store.answer = answer
    _, nbytes = stored.fetch(masks)
    assert not left
    assert sorted(stored.store.ranges[1:]) == sorted([*expected, expected[1], expected[-1]])
    assert nbytes == stored.ref.index.size + sum(stop - start for _, (start, stop) in expected)


def test_a_piece_that_is_damaged_in_the_store_is_refused_by_its_shards_key_and_not_handed_over(stored: Stored):
    masks = stored.masks((1, 0, 9000))
    key, (start, _) = stored.expected(masks)[-1]
    data = bytearray(stored.store.objects[key])
    data[start] ^= 1
    stored.store.objects[key] = bytes(data)
    with pytest.raises(CorruptObject, match=rf"{key}: the BLAKE3 of piece \d differs") as caught:
        stored.fetch(masks)
    assert caught.value.key == key
    whole = stored.store.objects[key]
    stored.store.objects[key] = whole[:-5]
    with pytest.raises(CorruptObject) as caught:
        stored.fetch(masks)
    assert caught.value.key == key
    del stored.store.objects[key]
    with pytest.raises(NotFound) as missing:
        stored.fetch(masks)
    assert missing.value.key == key
    stored.fetch(stored.masks((0, 0, 1)))  # the other shard is not asked


def test_an_error_of_the_taker_is_not_about_the_keyframe(stored: Stored):
    def take(tensor: int, start: int, cells: Cells) -> None:
        raise StoreUnavailable("no room")

    with pytest.raises(StoreUnavailable) as caught:
        fetch_cells(stored.store, stored.geometry, stored.ref, lambda *_: True, take, map)
    assert caught.value.key is None


def test_an_index_that_is_damaged_or_missing_is_refused_by_its_key(stored: Stored):
    key = stored.ref.index.key
    stored.store.objects[key] = stored.store.objects[key][:-1] + b" "
    with pytest.raises(CorruptObject, match="its BLAKE3") as caught:
        stored.fetch(stored.masks((0, 0, 1)))
    assert caught.value.key == key
    del stored.store.objects[key]
    with pytest.raises(NotFound) as missing:
        stored.fetch(stored.masks((0, 0, 1)))
    assert missing.value.key == key


def test_a_shard_without_pieces_is_checked_before_a_cell_is_handed_over_and_fetched_again_if_damaged(plain: Stored):
    plain.without_pieces()
    shard, honest = plain.ref.shards[0], plain.store.objects[plain.ref.shards[0].key]
    left = [shard.key]

    def answer(key: str, part: ByteRange, data: bytes) -> bytes:
        if key in left:
            left.remove(key)
            return bytes(len(data))
        return data

    plain.store.answer = answer
    plain.fetch(plain.masks((0, 5, 6)))
    assert [key for key, _ in plain.store.ranges[1:]] == [shard.key, shard.key]
    for damaged in (honest[:-1] + b"\x55", honest + b"x"):
        plain.store.objects[shard.key] = damaged
        taken = Taken(plain.geometry)
        with pytest.raises(CorruptObject) as caught:
            fetch_cells(plain.store, plain.geometry, plain.ref, lambda *_: True, taken.take, map)
        assert caught.value.key == shard.key
        assert not any(times.any() for times in taken.times)


# -- what is refused ---------------------------------------------------------------------------------------------------


def renamed(index: dict[str, Any], change: Callable[[dict[str, str]], object]) -> None:
    change(index["weight_map"])


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
MAPS: dict[str, Callable[[dict[str, Any]], object]] = {
    "no weight map": lambda index: index.pop("weight_map"),
    "a weight map that is a list": lambda index: index.update(weight_map=[["t00", FIRST], ["t01", SECOND]]),
    "an empty weight map": lambda index: index["weight_map"].clear(),
    "a tensor less": lambda index: index["weight_map"].pop("t01"),
    "a tensor more": lambda index: index["weight_map"].update(t02=SECOND),
    "an unknown tensor": lambda index: index["weight_map"].update(t02=index["weight_map"].pop("t01")),
    "tensors out of order": lambda index: index["weight_map"].update(t00=SECOND, t01=FIRST),
    "one shard of all tensors": lambda index: index["weight_map"].update(t01=FIRST),
    "the last shard of all tensors": lambda index: index["weight_map"].update(t00=SECOND),
    "a shard that the record has not": lambda index: index["weight_map"].update(t01="model-3.safetensors"),
    "a shard that is none": lambda index: index["weight_map"].update(t01=[SECOND]),
    "a hash less": lambda index: index["metadata"]["pulse"]["pieces"]["blake3"][SECOND].pop(),
    "a hash more": lambda index: index["metadata"]["pulse"]["pieces"]["blake3"][SECOND].append("0" * 64),
    "no hashes": lambda index: index["metadata"]["pulse"]["pieces"]["blake3"].clear(),
    "pieces of another size": lambda index: index["metadata"]["pulse"]["pieces"].update(size=8192),
    "pieces of no size": lambda index: index["metadata"]["pulse"]["pieces"].update(size=0),
}


@pytest.mark.parametrize("name", MAPS)
def test_an_index_that_does_not_fit_the_layout_is_refused_before_a_shard_is_read(plain: Stored, name: str):
    index = plain.index()
    MAPS[name](index)
    plain.commit(index)
    with pytest.raises(CorruptObject) as caught:
        plain.fetch(plain.masks((0, 0, 1)))
    assert caught.value.key == plain.ref.index.key
    assert [key for key, _ in plain.store.ranges] == [plain.ref.index.key]


def test_a_tensor_that_is_named_twice_is_refused(plain: Stored):
    data = plain.store.objects[plain.ref.index.key]
    plain.commit(data.replace(b'"t00":', b'"t00":"' + FIRST.encode() + b'","t00":', 1))
    with pytest.raises(CorruptObject, match="a name is there twice") as caught:
        plain.fetch(plain.masks((0, 0, 1)))
    assert caught.value.key == plain.ref.index.key


@pytest.mark.parametrize("pieces", [True, False])
def test_a_size_that_the_tensors_do_not_make_is_refused_before_memory_is_taken(plain: Stored, pieces: bool):
    if not pieces:
        plain.without_pieces()
    index = plain.index()
    for size in (1, plain.ref.shards[1].size + 8, 1 << 45):
        if pieces:
            count = -(-min(size, 1 << 20) // PIECE)
            index["metadata"]["pulse"]["pieces"]["blake3"][SECOND] = ["0" * 64] * count
            plain.commit(index)
        lie = plain.ref.shards[1].model_copy(update={"size": size})
        plain.ref = plain.ref.model_copy(update={"shards": (plain.ref.shards[0], lie)})
        tracemalloc.start()
        try:
            with pytest.raises(CorruptObject) as caught:
                plain.fetch(plain.masks((1, 0, 1)))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert caught.value.key in (lie.key, plain.ref.index.key)
        assert peak < 4 << 20
        assert [key for key, _ in plain.store.ranges] == [plain.ref.index.key]


def test_shards_of_one_name_missing_doubled_or_out_of_order_are_refused(stored: Stored):
    first, second = stored.ref.shards
    again = second.model_copy(update={"key": "objects/keyframe/other/" + first.key.rpartition("/")[2]})
    for shards in ((second, first), (first,), (first, first, second), (first, second, second), (first, again)):
        ref = stored.ref.model_copy(update={"shards": shards})
        with pytest.raises(CorruptObject):
            fetch_cells(stored.store, stored.geometry, ref, lambda *_: True, lambda *_: None, map)


def test_any_other_header_is_refused_where_its_piece_is_fetched(plain: Stored):
    data = plain.store.objects[plain.ref.shards[0].key]
    plain.change_shard(0, data.replace(b'"pt"', b'"tp"', 1))
    plain.fetch(plain.masks((0, 8000, 8001)))
    with pytest.raises(CorruptObject, match="not the header") as caught:
        plain.fetch(plain.masks((0, 0, 1)))
    assert caught.value.key == plain.ref.shards[0].key
    plain.without_pieces()
    with pytest.raises(CorruptObject, match="not the header") as caught:
        plain.fetch(plain.masks((0, 8000, 8001)))
    assert caught.value.key == plain.ref.shards[0].key


def test_a_header_that_takes_several_pieces_is_compared_in_each_of_them():
    many: list[tuple[Dtype, tuple[int, ...]]] = [("BF16", (1,) * 30)] * 90
    stored = Stored([*many, ("U8", (9000,))], KeyframeForm(piece_bytes=PIECE))
    header = parse_head(stored.plain[0], len(stored.plain[0])).nbytes
    assert header > 2 * PIECE
    stored.fetch(stored.masks((0, 0, 1)))
    data = bytearray(stored.plain[0])
    data[header - 40] ^= 1
    stored.change_shard(0, bytes(data))
    stored.fetch(stored.masks((90, 8000, 9000)))
    with pytest.raises(CorruptObject, match="not the header"):
        stored.fetch(stored.masks((0, 0, 1)))


def test_a_coding_that_is_not_known_is_refused_as_written_by_another_release():
    stored = Stored([("BF16", (90,))], KeyframeForm("exponents", piece_bytes=PIECE))
    index = stored.index()
    index["metadata"]["pulse"]["coding"]["format"] = "pulse-exponents/2"
    stored.commit(index)
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        stored.fetch(stored.masks((0, 0, 1)))


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["raw", "exponents"])
def test_memory_stays_within_a_few_pieces(coding: Any):
    piece = 1 << 17
    stored = Stored([("BF16", (4_000_000,))], KeyframeForm(coding, piece_bytes=piece))
    sums: list[int] = []
    index = stored.ref.index.size

    def fetch() -> None:
        fetch_cells(
            stored.store,
            stored.geometry,
            stored.ref,
            lambda *_: True,
            lambda tensor, start, cells: sums.append(int(cells.sum(dtype=np.uint64))),
            map,
        )

    fetch()  # what is loaded or compiled at first is not counted
    sums.clear()
    tracemalloc.start()
    try:
        fetch()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(sums) == int(stored.cells[0].sum(dtype=np.uint64))
    assert len(sums) > 60
    assert peak < 6 * piece + 8 * index
