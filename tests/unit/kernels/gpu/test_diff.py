"""The device's diff finds what the reference finds, in its order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pulse_kernels.gpu.diff import diff
from tests.unit.kernels.gpu.inputs import (
    PATTERNS,
    REFERENCE,
    TILE,
    Policy,
    by_group,
    changed_at,
    places_of,
    policy,
    to_device,
    to_host,
)
from tests.unit.kernels.inputs import all_same

TYPES = {1: "F8_E4M3", 2: "BF16", 4: "F32", 8: "I64"}


def check(model: Policy, live: np.ndarray, shift: int = 0, share: float = 0.02) -> None:
    changes = diff(model.tiling(live, shift), model.tiling(), share)
    expected = [REFERENCE.diff(a, b) for a, b in zip(model.groups(live), model.groups(model.cells), strict=True)]
    found = by_group(changes)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert all_same(one, other)
    assert len(changes) == sum(len(index) for index, _, _ in expected)
    assert np.array_equal(changes.group_offsets.cpu().numpy(), changes.host_offsets)
    offsets = changes.tile_offsets.tolist()
    tiles = model.tiles
    for tile, (first, count) in enumerate(zip(tiles.first.tolist(), tiles.count.tolist(), strict=True)):
        inside = to_host(changes.index[offsets[tile] : offsets[tile + 1]])
        assert np.all((inside >= first) & (inside < first + count))
    assert offsets[-1] == len(changes)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_diff_finds_what_the_reference_finds(device: str, pattern: str) -> None:
    model = policy(device)
    check(model, changed_at(model.cells, places_of(pattern, len(model.cells))))


@pytest.mark.parametrize("width", [1, 4, 8])
def test_diff_finds_changes_of_cells_of_every_width(device: str, width: int) -> None:
    model = policy(device, TYPES[width])
    check(model, changed_at(model.cells, places_of("few", len(model.cells))))
    check(model, changed_at(model.cells, places_of("a run", len(model.cells))))


@pytest.mark.parametrize("shift", [1, 2, 3])
def test_diff_reads_tensors_that_begin_at_any_cell(device: str, shift: int) -> None:
    model = policy(device)
    check(model, changed_at(model.cells, places_of("ends of tiles", len(model.cells))), shift)


def test_diff_of_a_single_cell(device: str) -> None:
    model = policy(device, sizes=(1,))
    check(model, model.cells.copy())
    check(model, changed_at(model.cells, [0]))


def test_diff_runs_again_where_there_was_too_little_room(device: str) -> None:
    model = policy(device, sizes=(TILE * 8,))
    check(model, changed_at(model.cells, places_of("all", TILE * 8)), share=0.0)


def test_diff_tells_patterns_apart_that_are_equal_as_numbers(device: str) -> None:
    model = policy(device, sizes=(TILE,))
    zero, minus_zero, nan, other_nan = 0x0000, 0x8000, 0x7FC0, 0x7FC1
    model.cells[:] = 0
    model.cells[[3, 4, 5, 6]] = zero, minus_zero, nan, nan
    live = model.cells.copy()
    live[[3, 4, 5]] = minus_zero, zero, other_nan
    changes = diff(model.tiling(live), model.tiling())
    assert by_group(changes)[0][0].tolist() == [3, 4, 5]


TIES_AND_NANS = (
    "00000000 80000000 3F808000 3F818000 3F808001 7F7FFFFF 7F800000 FF800000 7F800001 7FFFFFFF FFFFFFFF 7FC00000 "
    "FF800001 00000001 00008000 00018000 7F808000 FFFF8000"
)
AWKWARD = np.array([int(pattern, 16) for pattern in TIES_AND_NANS.split()], np.uint32)
"""float32 patterns where rounding is a tie, overflows, or meets a NaN with a payload in either half."""


def test_diff_rounds_float32_tensors_as_the_reference_does_beside_tensors_that_are_bf16(device: str) -> None:
    model = policy(device, sizes=(TILE * 2 + 3, 100, 300), group=10_000)
    rng = np.random.default_rng(5)
    wide = np.frombuffer(rng.bytes(4 * (TILE * 2 + 3)), np.uint32).copy()
    wide[: len(AWKWARD)] = AWKWARD
    narrow = model.cells[TILE * 2 + 3 :].copy()
    rounded = np.empty(len(wide), np.uint16)
    REFERENCE.cast_f32(wide, rounded)
    model.cells[: len(wide) : 2] = rounded[::2]  # half of them are as they were
    narrow[7] ^= 1
    tensors = [to_device(wide, device).view(torch.float32), *model.tensors(np.concatenate([rounded, narrow]))[1:]]
    changes = diff(model.tiles.over(tensors), model.tiling())
    assert all_same(by_group(changes)[0], REFERENCE.diff(np.concatenate([rounded, narrow]), model.cells))
