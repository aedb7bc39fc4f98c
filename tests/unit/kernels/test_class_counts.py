"""Counting cells by class against plain Python, with each kind of instruction that a processor may have for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytest
from numba.core.registry import cpu_target

from pulse_kernels.cpu.loops import class_counts
from pulse_kernels.cpu.loops.class_counts import AT_ONCE, BLOCKS, COUNTERS
from pulse_kernels.cpu.loops.simd import BLOCK
from tests.unit.kernels.inputs import WIDTHS, random_cells, unaligned

Loops = dict[str, Callable[..., Any]]
Kinds = npt.NDArray[np.uint8]
STRETCH = BLOCKS * BLOCK
SHIFT_AND_MASK = {1: (3, 15), 2: (7, 255), 4: (23, 255), 8: (55, 255)}
FEATURES = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
INSTRUCTIONS = {feature: found for feature, found in class_counts.LOOK_UP.items() if feature in FEATURES}
"""What this processor has, by feature; every one can do without."""


@pytest.fixture(scope="module", params=[*INSTRUCTIONS, "none"])
def loops(request: pytest.FixtureRequest) -> Loops:
    """The functions as compiled ones that Python can call; compiled for each type that they meet."""

    def count_classes(kinds: Any, at: Any, totals: Any, befores: Any, row: Any) -> None:
        class_counts.count_classes(kinds, np.uint64(at), totals, befores, np.uint64(row))

    def find_classes(cells: Any, at: Any, bounds: Any, kinds: Any, place: Any) -> None:
        shift, mask, first, last = bounds
        class_counts.find_classes(cells, np.uint64(at), shift, mask, first, last, kinds, np.uint64(place))

    def find_class(kinds: Any, at: Any, kind: Any, masks: Any, begin: Any) -> None:
        class_counts.find_class(kinds, np.uint64(at), np.uint8(kind), masks, np.uint64(begin))

    def classes_past(totals: Any, wanted: Any) -> Any:
        return class_counts.classes_past(totals, wanted)

    words = numba.uint32[::1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(class_counts, "instructions", lambda _: INSTRUCTIONS.get(request.param, (16, "", "")))
        counting = numba.njit((numba.uint8[::1], numba.int64, words, words, numba.int64))(count_classes)
    every = (find_classes, find_class, classes_past)
    return {"count_classes": counting} | {function.__name__: numba.njit(function) for function in every}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 31), (5, 9), (224, 255), (255, 255)])
def test_classes_are_numbered_from_the_highest(loops: Loops, width: int, first: int, last: int):
    shift, mask = SHIFT_AND_MASK[width]
    cells = unaligned(random_cells(width, STRETCH + 30))
    bounds = (cells.dtype.type(shift), cells.dtype.type(mask), np.uint8(first), np.uint8(last))
    kinds = np.full(STRETCH + 20, 99, np.uint8)
    loops["find_classes"](cells, 7, bounds, kinds, 11)
    expected = [last - min(max((v >> shift) & mask, first), last) for v in cells[7 : 7 + STRETCH].tolist()]
    assert kinds.tolist() == [99] * 11 + expected + [99] * 9


def stretches() -> dict[str, Kinds]:
    rng = np.random.default_rng(0)
    found = {f"all {c}": np.full(STRETCH, c, np.uint8) for c in range(COUNTERS)}
    found |= {f"below {n}": rng.integers(0, n, STRETCH, np.uint8) for n in (2, AT_ONCE, AT_ONCE + 1, COUNTERS)}
    for c in (0, 15, 16, 31):
        found[f"one {c}"] = np.where(np.arange(STRETCH) == 77 + c, c, 3).astype(np.uint8)
    return found


@pytest.mark.parametrize("kinds", [pytest.param(kinds, id=name) for name, kinds in stretches().items()])
def test_classes_are_counted_as_one_by_one(loops: Loops, kinds: Kinds):
    where, totals = unaligned(np.concatenate((kinds[:5], kinds))), np.arange(1000, 1000 + COUNTERS, dtype=np.uint32)
    befores = np.full(COUNTERS + 9, 99, np.uint32)
    loops["count_classes"](where, 5, totals, befores, 6)
    assert totals.tolist() == [1000 + c + int((kinds == c).sum()) for c in range(COUNTERS)]
    assert befores.tolist() == [99] * 6 + list(range(1000, 1000 + COUNTERS)) + [99] * 3
    for c in range(COUNTERS):
        masks = np.full(BLOCKS + 3, 99, np.uint64)
        loops["find_class"](where, 5, c, masks, 2)
        expected = [sum(1 << k for k in range(BLOCK) if kinds[BLOCK * b + k] == c) for b in range(BLOCKS)]
        assert masks.tolist() == [99] * 2 + expected + [99]


def test_a_class_is_past_what_is_wanted_once_it_has_more_cells(loops: Loops):
    totals = np.array([0, 1, 2**31, 2**32 - 1] * 8, np.uint32)
    for wanted in (0, 1, 2**31 - 1, 2**31, 2**32 - 1):
        expected = sum(1 << c for c in range(COUNTERS) if int(totals[c]) > wanted)
        assert int(loops["classes_past"](totals, np.full(COUNTERS, wanted, np.uint32))) == expected
