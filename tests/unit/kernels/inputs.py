"""Arrays for kernel tests: all cell types, awkward memory, and changes at awkward places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pulse_kernels import CELL_TYPES, BackendName, Cells, CellType, Index

BACKENDS = tuple(name for name in get_args(BackendName) if name != "auto")
FAST = tuple(name for name in BACKENDS if name != "reference")
TYPES = tuple(CELL_TYPES.values())
WIDTHS = (1, 2, 4, 8)
CHUNK = 64
"""Cells that the compiled diff compares at a time."""
SIZES = (0, 1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 7, 1023, 1024, 1025, 2048)


def same(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    """Tell whether two arrays are equal in dtype, shape and every bit."""
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


def all_same(found: tuple[npt.NDArray[Any], ...], expected: tuple[npt.NDArray[Any], ...]) -> bool:
    return len(found) == len(expected) and all(same(a, b) for a, b in zip(found, expected, strict=True))


def random_cells(width: int, size: int, seed: int = 0) -> Cells:
    """Return cells of any pattern."""
    return np.frombuffer(np.random.default_rng((seed, width, size)).bytes(width * size), f"<u{width}").copy()


def random_index(size: int, count: int, seed: int = 0) -> Index:
    """Return ``count`` strictly increasing places below ``size``."""
    places = np.random.default_rng((seed, size, count)).choice(size, count, replace=False)
    return np.sort(places).astype(np.uint32)


def unaligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy that begins at an odd address."""
    memory = np.zeros(array.nbytes + 2, np.uint8)
    start = 1 - memory.ctypes.data % 2
    view = memory[start : start + array.nbytes].view(array.dtype)
    view[:] = array
    assert view.ctypes.data % 2 == 1
    return view


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only copy."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


MEMORY: dict[str, Callable[[npt.NDArray[Any]], npt.NDArray[Any]]] = {
    "plain": np.copy,
    "unaligned": unaligned,
    "read-only": frozen,
    "read-only and unaligned": lambda array: np.frombuffer(b"x" + array.tobytes(), array.dtype, len(array), 1),
}
"""The same values in memory of each kind that callers bring."""


def places(size: int) -> st.SearchStrategy[list[int]]:
    """Draw sorted places below ``size``, often at the ends of chunks."""
    if not size:
        return st.just([])
    ends = sorted({p for c in range(0, size + 1, CHUNK) for p in (c - 1, c, c + 1) if 0 <= p < size})
    one = st.one_of(st.sampled_from(ends), st.integers(0, size - 1))
    return st.sets(one, max_size=min(size, 40)).map(sorted)


@st.composite
def changed_arrays(draw: st.DrawFn, width: int) -> tuple[Cells, Cells, list[int]]:
    """Draw (base, live, the places where they differ)."""
    size = draw(st.one_of(st.sampled_from(SIZES), st.integers(0, 300)))
    base = random_cells(width, size, draw(st.integers(0, 99)))
    live = base.copy()
    where = draw(places(size))
    top = (1 << (8 * width)) - 1
    for place in where:
        flip = draw(st.one_of(st.sampled_from([1, 1 << (8 * width - 1), top]), st.integers(1, top)))
        live[place] ^= live.dtype.type(flip)
    return base, live, where


@st.composite
def deltas(draw: st.DrawFn, width: int, size: int = 300) -> tuple[Index, Cells]:
    """Draw (index, distance), none of them zero."""
    where = draw(places(size))
    top = (1 << (8 * width)) - 1
    one = st.one_of(st.sampled_from([1, top, 1 << (8 * width - 1)]), st.integers(1, top))
    steps = draw(st.lists(one, min_size=len(where), max_size=len(where)))
    return np.array(where, np.uint32), np.array(steps, f"<u{width}")


def place_in_order(pattern: int, cell_type: CellType) -> int:
    """Return a pattern's place, by the definition: sign and magnitude, with -0.0 just below 0.0."""
    if not cell_type.is_float:
        return pattern
    sign_bit = 1 << (cell_type.bits - 1)
    return -1 - (pattern - sign_bit) if pattern & sign_bit else pattern
