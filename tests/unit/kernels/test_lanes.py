"""Groups of so many chunks that they are read side by side, in lanes: all is found that was coded, damage too."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_kernels import (
    CELL_TYPES,
    CodecError,
    CoderName,
    RankError,
    decode_group,
    encode_group,
    get_backend,
    step_group,
)
from pulse_kernels.cpu.loops.lanes import BATCH, BLOCK, LANES, LEAST
from pulse_kernels.format.group_bytes import split
from pulse_kernels.format.rans import CHUNK
from tests.support.sampling import examples, slow_but
from tests.unit.kernels.inputs import random_index, same

FAST, REFERENCE = get_backend("numba"), get_backend("reference")
by_coder = pytest.mark.parametrize("coder", ["gap", "class"])
COUNTS = [
    *((LEAST - 1) * CHUNK, (LEAST - 1) * CHUNK + 1, LEAST * CHUNK - 1, LEAST * CHUNK),
    *(LEAST * CHUNK + BLOCK, 9 * CHUNK + BLOCK - 1, BATCH - CHUNK, BATCH - 1, BATCH, BATCH + 1),
    *(BATCH + (LEAST - 1) * CHUNK + BLOCK + 1, 2 * BATCH + CHUNK),
]
"""Changes: ends of chunks, of looks at the lanes, and of batches."""


def group(name: str, changed: int, far: float, seed: int = 0) -> Any:
    """Return (cell type, cells, index, old, new, distance) of a group: some changes go far, and some lie far apart.

    Args:
        name: of the cells' type.
        changed: how many cells change.
        far: share of the changes that go to any other value, the rest to one near by.
        seed: of it all.
    """
    cell_type, random = CELL_TYPES[name], np.random.default_rng((seed, changed))
    size = min(2 * changed + 200_000, (16 << 20) // cell_type.width)
    if cell_type.is_float and cell_type.width == 2:
        cells = (random.normal(0, 0.02, size).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        cells = random.integers(0, 1 << cell_type.bits, size, np.uint64, endpoint=False).astype(cell_type.dtype)
    index = random_index(size - 150_000, changed, seed)
    index[changed // 2 :] += np.uint32(150_000)  # a gap of more bits than most
    distance = random.choice(np.array([1, -1, 2, -3, 12, -14], np.int64), changed).astype(cell_type.dtype)
    other = random.integers(1, (1 << cell_type.bits) - 1, changed, np.uint64).astype(cell_type.dtype)
    distance = np.where(random.random(changed) < far, other, distance)
    old = cells[index]
    return cell_type, cells, index, old, REFERENCE.move(old, distance, cell_type), distance


@by_coder
@pytest.mark.parametrize("changed", slow_but(COUNTS[::3], COUNTS))
@pytest.mark.parametrize("far", [0.0, 0.01, 0.7])
def test_all_changes_are_read(coder: CoderName, changed: int, far: float):
    cell_type, cells, index, old, new, distance = group("BF16", changed, far)
    data = encode_group(FAST, coder, cell_type, len(cells), index, old, new, [cells])
    found, steps = decode_group(FAST, coder, cell_type, len(cells), changed, data, [cells])
    assert same(found, index)
    assert same(steps, distance)
    stepped = step_group(FAST, coder, cell_type, len(cells), changed, data, [cells[:777], cells[777:]], 12_345)
    assert all(same(a, b) for a, b in zip(stepped[:3], (index, old, new), strict=True))
    assert stepped[3:] == (REFERENCE.digest_sparse(index, old, 12_345), REFERENCE.digest_sparse(index, new, 12_345))


@by_coder
@pytest.mark.parametrize("name", ["U8", "F8_E4M3", "I16", "F32", "I64", "F64"])
def test_cells_of_all_widths(coder: CoderName, name: str):
    changed = (LANES + LEAST) * CHUNK + 100
    cell_type, cells, index, old, new, distance = group(name, changed, 0.2)
    data = encode_group(FAST, coder, cell_type, len(cells), index, old, new, [cells])
    found, steps = decode_group(FAST, coder, cell_type, len(cells), changed, data, [cells])
    assert same(found, index)
    assert same(steps, distance)
    if coder == "gap":
        moved, expected = cells.copy(), cells.copy()
        expected[index] = new
        sums = FAST.move_coded(split(False, changed, data), moved, cell_type, 99)
        assert same(moved, expected)
        assert sums == (REFERENCE.digest_sparse(index, old, 99), REFERENCE.digest_sparse(index, new, 99))


CHANGED = (LEAST + 1) * CHUNK + 321
BF16 = CELL_TYPES["BF16"]


@functools.cache
def whole(coder: CoderName) -> tuple[Any, bytes]:
    """Return cells, and changes of them as they are coded; made by the first test that asks."""
    cell_type, cells, *change, _ = group("BF16", CHANGED, 0.02)
    return cells, encode_group(FAST, coder, cell_type, len(cells), *change, [cells])


@by_coder
@examples(60)
@given(data=st.data())
def test_damage_is_an_error_or_read_as_the_reference_reads_it(coder: CoderName, data: st.DataObject):
    cells, data_of_all = whole(coder)
    damaged = bytearray(data_of_all)
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=3)):
        damaged[place] ^= data.draw(st.integers(1, 255))

    def read(backend: Any) -> Any:
        try:
            return decode_group(backend, coder, BF16, len(cells), CHANGED, bytes(damaged), [cells])
        except (CodecError, RankError) as error:
            return type(error)

    found, expected = read(FAST), read(REFERENCE)
    if isinstance(expected, tuple):
        assert all(same(a, b) for a, b in zip(found, expected, strict=True))
    else:
        assert found is expected


@pytest.mark.parametrize("filled", [0x00, 0xFF, 0x5A])
def test_words_that_never_end_are_an_error(filled: int):
    cells, data = whole("gap")
    damaged = bytearray(data)
    damaged[-len(damaged) // 2 :] = bytes([filled]) * (len(damaged) // 2)
    with pytest.raises(CodecError):
        decode_group(FAST, "gap", BF16, len(cells), CHANGED, bytes(damaged), [cells])
