"""Groups: both coders invert themselves, every backend writes the same bytes, and damage is at most an error."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import (
    CELL_TYPES,
    GROUP_BYTES,
    Backend,
    Cells,
    CellType,
    CoderName,
    Index,
    RankError,
    SpanTable,
    decode_group,
    encode_group,
    get_backend,
    move_group,
    step_group,
)
from pulse_kernels.format.group import choose_classes
from pulse_kernels.format.rans import CHUNK
from tests.support.sampling import examples
from tests.unit.kernels.inputs import (
    MEMORY,
    TYPES,
    all_same,
    deltas,
    frozen,
    random_cells,
    random_index,
    same,
    unaligned,
)

by_name = pytest.mark.parametrize("cell_type", TYPES, ids=lambda t: t.name)
by_coder = pytest.mark.parametrize("coder", ["gap", "class"])
REFERENCE = get_backend("reference")


def spans_of(cells: Cells, ends: list[int]) -> list[Cells]:
    ends = [0, *sorted(ends), len(cells)]
    return [cells[a:b] for a, b in itertools.pairwise(ends)]


def moved(cells: Cells, index: Index, distance: Cells, cell_type: CellType) -> tuple[Index, Cells, Cells]:
    """Return a change of the cells: (index, old, new)."""
    old = cells[index]
    return index, old, REFERENCE.move(old, distance, cell_type)


@by_coder
@by_name
@examples(5)
@given(data=st.data())
def test_a_group_decodes_to_what_was_coded(
    backend: Backend, coder: CoderName, cell_type: CellType, data: st.DataObject
):
    size = data.draw(st.integers(1, 300))
    index, distance = data.draw(deltas(cell_type.width, size).filter(lambda delta: len(delta[0]) > 0))
    cells = random_cells(cell_type.width, size, data.draw(st.integers(0, 9)))
    base = spans_of(cells, data.draw(st.lists(st.integers(0, size), max_size=3)))
    change = moved(cells, index, distance, cell_type)
    coded = encode_group(backend, coder, cell_type, size, *change, base)
    assert coded == encode_group(REFERENCE, coder, cell_type, size, *change, base)
    found = decode_group(backend, coder, cell_type, size, len(index), coded, base)
    assert all_same(found, (index, distance))


def like_weights(cell_type: CellType, size: int) -> Cells:
    """Return cells of both signs whose classes are as those of trained weights, and some zeros, infinities, NaNs."""
    values = np.random.default_rng(5).normal(0, 0.02, size)
    values[:: size // 7] = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-40, 1.0][: len(values[:: size // 7])]
    with np.errstate(over="ignore"):
        patterns = {8: values, 4: values.astype(np.float32), 2: values.astype(np.float16)}
    if cell_type.name == "BF16":
        return (patterns[4].view(np.uint32) >> 16).astype(np.uint16)
    return patterns[max(2, cell_type.width)].view(f"<u{max(2, cell_type.width)}").astype(cell_type.dtype)


@by_name
@examples(5)
@given(data=st.data())
def test_cells_move_while_their_changes_are_decoded_as_they_do_afterwards(
    backend: Backend, cell_type: CellType, data: st.DataObject
):
    size, start = data.draw(st.integers(1, 300)), data.draw(st.sampled_from([0, 1000, 2**33 + 5]))
    index, distance = data.draw(deltas(cell_type.width, size).filter(lambda delta: len(delta[0]) > 0))
    cells = random_cells(cell_type.width, size, data.draw(st.integers(0, 9)))
    coded = encode_group(REFERENCE, "gap", cell_type, size, *moved(cells, index, distance, cell_type))
    expected = cells.copy()
    sums = REFERENCE.move_spans([expected], index, distance, cell_type, start)
    assert move_group(backend, cell_type, cells, len(index), coded, start) == sums
    assert same(cells, expected)


@pytest.mark.parametrize("cell_type", [CELL_TYPES["BF16"], CELL_TYPES["I64"]], ids=lambda t: t.name)
@pytest.mark.parametrize("changed", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 4 * CHUNK, 7 * CHUNK + 5])
def test_cells_of_any_number_of_chunks_move_while_they_are_decoded(fast: Backend, cell_type: CellType, changed: int):
    size = 20_000
    cells, index = unaligned(like_weights(cell_type, size)), random_index(size, changed)
    distance = random_cells(cell_type.width, changed, seed=1) | 1
    coded = encode_group(fast, "gap", cell_type, size, *moved(cells, index, distance, cell_type))
    expected = cells.copy()
    sums = REFERENCE.move_spans([expected], index, distance, cell_type, 77)
    assert move_group(fast, cell_type, cells, changed, coded, 77) == sums
    assert same(cells, expected)


@by_coder
@by_name
@examples(5)
@given(data=st.data())
def test_cells_are_looked_at_while_their_changes_are_decoded_as_they_are_afterwards(
    backend: Backend, coder: CoderName, cell_type: CellType, data: st.DataObject
):
    size, start = data.draw(st.integers(1, 300)), data.draw(st.sampled_from([0, 1000, 2**33 + 5]))
    index, distance = data.draw(deltas(cell_type.width, size).filter(lambda delta: len(delta[0]) > 0))
    cells = random_cells(cell_type.width, size, data.draw(st.integers(0, 9)))
    base = spans_of(frozen(cells), data.draw(st.lists(st.integers(0, size), max_size=3)))
    change = moved(cells, index, distance, cell_type)
    coded = encode_group(REFERENCE, coder, cell_type, size, *change, base)
    for spans in (base, SpanTable.of(base, cell_type.dtype)):
        found = step_group(backend, coder, cell_type, size, len(index), coded, spans, start)
        assert all_same(found[:3], change)
        assert found[3:] == REFERENCE.step(cells, index, distance, cell_type, start)[2:]


@pytest.mark.parametrize("cell_type", [CELL_TYPES["BF16"], CELL_TYPES["I64"]], ids=lambda t: t.name)
@pytest.mark.parametrize("changed", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 4 * CHUNK, 7 * CHUNK + 5])
def test_cells_of_any_number_of_chunks_are_looked_at_while_they_are_decoded(
    fast: Backend, cell_type: CellType, changed: int
):
    size = 20_000
    cells, index = unaligned(like_weights(cell_type, size)), random_index(size, changed)
    change = moved(cells, index, random_cells(cell_type.width, changed, seed=1) | 1, cell_type)
    coded = encode_group(fast, "gap", cell_type, size, *change)
    spans = spans_of(cells, [0, 1, 2, 5000, 5000, 19_999])
    found = step_group(fast, "gap", cell_type, size, changed, coded, spans, 77)
    assert all_same(found[:3], change)
    assert found[3:] == REFERENCE.digest_changes(*change, 77)
    memory = [array if array.base is None else array.base for array in found[:3]]
    assert [whole.nbytes for whole in memory] == [array.nbytes for array in found[:3]]


def test_cells_that_can_not_be_written_are_not_moved(fast: Backend):
    index, old, new = np.array([1], np.uint32), *np.array([[0], [1]], np.uint16)
    coded = encode_group(fast, "gap", CELL_TYPES["BF16"], 9, index, old, new)
    with pytest.raises(TypeError):
        move_group(fast, CELL_TYPES["BF16"], frozen(np.zeros(9, np.uint16)), 1, coded, 0)
    with pytest.raises(TypeError):
        move_group(fast, CELL_TYPES["BF16"], np.zeros(9, np.uint32), 1, coded, 0)


@by_coder
def test_what_is_decoded_keeps_no_memory_but_its_own(backend: Backend, coder: CoderName):
    """A worker keeps it for as long as a version is staged, or may be undone, and counts what it takes."""
    cell_type, size, changed = CELL_TYPES["BF16"], 20_000, 5000
    cells, index = like_weights(cell_type, size), random_index(size, changed)
    coded = encode_group(
        REFERENCE, coder, cell_type, size, *moved(cells, index, np.ones_like(cells[index]), cell_type), [cells]
    )
    for found in decode_group(backend, coder, cell_type, size, changed, coded, [cells]):
        memory = found if found.base is None else found.base
        assert memory.nbytes == found.nbytes


@by_coder
@pytest.mark.parametrize("changed", [1, 255, 256, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK, 3 * CHUNK + 5])
def test_chunks_end_where_they_should(fast: Backend, coder: CoderName, changed: int):
    cell_type, size = CELL_TYPES["BF16"], 20_000
    cells, index = like_weights(cell_type, size), random_index(size, changed)
    distance = (np.random.default_rng(3).geometric(0.3, changed) * 2 - 1).astype(np.uint16)
    change = moved(cells, index, distance, cell_type)
    coded = encode_group(fast, coder, cell_type, size, *change, [cells])
    assert coded == encode_group(REFERENCE, coder, cell_type, size, *change, [cells])
    assert all_same(decode_group(fast, coder, cell_type, size, changed, coded, [cells]), (index, distance))
    assert all_same(decode_group(REFERENCE, coder, cell_type, size, changed, coded, [cells]), (index, distance))


@by_coder
@by_name
def test_every_backend_writes_the_same_bytes(fast: Backend, reference: Backend, coder: CoderName, cell_type: CellType):
    size, changed = 9000, 2600
    cells, index = like_weights(cell_type, size), random_index(size, changed)
    distance = random_cells(cell_type.width, changed, seed=1)
    distance[::2] = np.where(distance[::2] & 1, 1, (1 << cell_type.bits) - 1).astype(cell_type.dtype)
    distance |= 1
    args = (coder, cell_type, size, *moved(cells, index, distance, cell_type), spans_of(cells, [17, 17, 4000]))
    coded = encode_group(reference, *args)
    assert encode_group(fast, *args) == coded
    found = decode_group(fast, coder, cell_type, size, changed, memoryview(coded), [cells])
    assert all_same(found, (index, distance))


@by_coder
def test_all_cells_of_a_full_group_may_change(fast: Backend, coder: CoderName):
    cell_type = CELL_TYPES["BF16"]
    size = GROUP_BYTES // 2
    cells = random_cells(2, size) & np.uint16(0x7FFF)
    index = np.arange(size, dtype=np.uint32)
    distance = np.ones(size, np.uint16)
    change = index, cells, fast.move(cells, distance, cell_type)
    coded = encode_group(fast, coder, cell_type, size, *change, [cells])
    assert len(coded) < size // 150
    assert all_same(decode_group(fast, coder, cell_type, size, size, coded, [cells]), (index, distance))


@by_coder
def test_distances_without_a_pattern_take_more_room_than_is_usual(fast: Backend, coder: CoderName):
    cell_type, size = CELL_TYPES["I64"], 60_000
    cells, index = random_cells(8, size), np.arange(size, dtype=np.uint32)
    distance = random_cells(8, size, seed=1) | 1
    change = moved(cells, index, distance, cell_type)
    coded = encode_group(fast, coder, cell_type, size, *change, [cells])
    assert len(coded) == pytest.approx(8 * size, rel=0.02)
    assert all_same(decode_group(fast, coder, cell_type, size, size, coded, [cells]), (index, distance))


@by_coder
def test_the_first_and_the_last_cell_of_a_full_group_are_reached(fast: Backend, coder: CoderName):
    size, cell_type = GROUP_BYTES, CELL_TYPES["U8"]
    cells = np.zeros(size, np.uint8)
    for places in ([0], [size - 1], [0, size - 1]):
        index, distance = np.array(places, np.uint32), np.full(len(places), 255, np.uint8)
        change = moved(cells, index, distance, cell_type)
        coded = encode_group(fast, coder, cell_type, size, *change, [cells])
        found = decode_group(fast, coder, cell_type, size, len(places), coded, [cells])
        assert all_same(found, (index, distance))


@by_coder
@pytest.mark.parametrize("memory", MEMORY)
def test_memory_may_be_unaligned_and_read_only(backend: Backend, coder: CoderName, memory: str):
    form, cell_type = MEMORY[memory], CELL_TYPES["F32"]
    cells, index, distance = random_cells(4, 500), random_index(500, 60), random_cells(4, 60, seed=1) | 1
    change = moved(cells, index, distance, cell_type)
    coded = encode_group(backend, coder, cell_type, 500, *change, [cells])
    base = [form(cells[:200]), form(cells[200:])]
    assert encode_group(backend, coder, cell_type, 500, *map(form, change), base) == coded
    data = memoryview(b"x" + coded)[1:]
    assert all_same(decode_group(backend, coder, cell_type, 500, 60, data, base), (index, distance))


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(1, 2000)), min_size=1, max_size=40))
def test_the_classes_are_the_window_that_holds_the_most(found: list[tuple[int, int]]):
    counts = np.zeros(256, np.uint32)
    for value, count in found:
        counts[value] += count
    first, chosen = choose_classes(counts)
    present, total = np.flatnonzero(counts), int(counts.sum())
    assert len(chosen) == min(20, 1 + total // 256, int(present[-1] - present[0]) + 1)
    held = [int(counts[k : k + len(chosen)].sum()) for k in range(257 - len(chosen))]
    assert first == held.index(max(held))
    kinds = np.clip(np.arange(256), first, first + len(chosen) - 1) - first
    assert chosen.tolist() == np.bincount(kinds, counts, len(chosen)).astype(int).tolist()


def test_outward_distances_cost_less_where_weights_grow(fast: Backend):
    cell_type, size = CELL_TYPES["BF16"], 50_000
    cells = like_weights(cell_type, size)
    index = random_index(size, 10_000)
    new = cells.copy()
    new[index] += 1
    grown = index, cells[index], new[index]
    mixed = index, cells[index], cells[index] + np.where(np.arange(10_000) % 2, 1, 0xFFFF).astype(np.uint16)
    sizes = [len(encode_group(fast, "class", cell_type, size, *change, [cells])) for change in (grown, mixed)]
    assert sizes[0] < sizes[1] - 10_000 // 8 * 0.9


def test_class_codes_smaller_where_small_weights_flip_more_often(fast: Backend):
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 0.02, 1_000_000).astype(np.float32)
    cells = (weights.view(np.uint32) >> 16).astype(np.uint16)
    chance = np.minimum(1, 1e-5 / np.abs(weights))
    index = np.flatnonzero(rng.random(len(weights)) < chance).astype(np.uint32)
    distance = np.where(rng.random(len(index)) < 0.5, 1, 0xFFFF).astype(np.uint16)
    change = moved(cells, index, distance, CELL_TYPES["BF16"])
    sizes = {
        coder: len(encode_group(fast, coder, CELL_TYPES["BF16"], len(cells), *change, [cells]))
        for coder in ("gap", "class")
    }
    assert sizes["class"] < 0.75 * sizes["gap"]


@pytest.mark.parametrize("function", ["encode", "decode"])
def test_class_without_base_cells_is_the_callers_mistake(backend: Backend, function: str):
    index, old, new, cells = np.array([1], np.uint32), *np.array([[0], [1]], np.uint16), np.zeros(9, np.uint16)
    coded = encode_group(backend, "class", CELL_TYPES["BF16"], 9, index, old, new, [cells])
    calls = {
        "encode": lambda: encode_group(backend, "class", CELL_TYPES["BF16"], 9, index, old, new),
        "decode": lambda: decode_group(backend, "class", CELL_TYPES["BF16"], 9, 1, coded),
    }
    with pytest.raises(ValueError, match="needs the base cells"):
        calls[function]()


def test_other_base_cells_are_met_with_a_rank_error(backend: Backend):
    cell_type = CELL_TYPES["BF16"]
    cells = np.full(600, 0x3F80, np.uint16)
    cells[:300] = 0x4000
    index = np.arange(299, 600, dtype=np.uint32)
    coded = encode_group(backend, "class", cell_type, 600, index, cells[index], cells[index] + np.uint16(1), [cells])
    other = cells.copy()
    other[:310] = 0x4000
    with pytest.raises(RankError):
        decode_group(backend, "class", cell_type, 600, len(index), coded, [other])
