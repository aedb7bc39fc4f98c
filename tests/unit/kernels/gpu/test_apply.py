"""Gather, move, apply, undo and copy on the device do what the reference does, in tensors that stay where they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pulse_kernels.gpu.apply import copy, distance, gather, locate, move, scatter, undo
from pulse_kernels.gpu.diff import diff
from tests.unit.kernels.gpu.inputs import (
    PATTERNS,
    REFERENCE,
    SIZES,
    changed_at,
    flat_cells,
    places_of,
    policy,
    to_device,
    to_host,
)
from tests.unit.kernels.inputs import same


@pytest.mark.parametrize("pattern", PATTERNS)
def test_apply_makes_the_weights_the_new_ones_and_undo_the_old_ones_again(device: str, pattern: str) -> None:
    model = policy(device)
    live = changed_at(model.cells, places_of(pattern, len(model.cells)))
    changes = diff(model.tiling(live), model.tiling())
    tensors = model.tensors()
    addresses = [tensor.data_ptr() for tensor in tensors]
    tiling = model.tiles.over(tensors)
    for _ in range(2):  # to store again changes nothing
        scatter(tiling, changes)
    assert same(flat_cells(tensors), live)
    for _ in range(2):
        undo(tiling, changes)
    assert same(flat_cells(tensors), model.cells)
    assert [tensor.data_ptr() for tensor in tensors] == addresses


@pytest.mark.parametrize("name", ["F8_E5M2", "U16", "F32", "F64"])
def test_apply_to_cells_of_every_width_in_tensors_that_begin_at_an_odd_cell(device: str, name: str) -> None:
    model = policy(device, name)
    live = changed_at(model.cells, places_of("a run", len(model.cells)))
    changes = diff(model.tiling(live), model.tiling())
    tensors = model.tensors(shift=1)
    scatter(model.tiles.over(tensors), changes)
    assert same(flat_cells(tensors), live)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_locate_finds_the_tiles_of_changes_and_gather_their_cells(device: str, pattern: str) -> None:
    model = policy(device)
    places = places_of(pattern, len(model.cells))
    changes = diff(model.tiling(changed_at(model.cells, places)), model.tiling())
    offsets = locate(model.tiles, changes.index, changes.group_offsets)
    assert torch.equal(offsets, changes.tile_offsets)
    assert same(to_host(gather(model.tiling(shift=1), offsets, changes.index)), model.cells[places])


@pytest.mark.parametrize("name", ["F8_E4M3", "BF16", "I16", "F32", "I32", "F64", "U64"])
def test_move_and_distance_are_those_of_the_reference(device: str, name: str) -> None:
    model = policy(device, name)
    top = 1 << (model.cell_type.bits - 1)
    corners = np.array([0, 1, top - 1, top, top + 1, 2 * top - 1], dtype=np.uint64).astype(model.cells.dtype)
    model.cells[:36] = np.repeat(corners, 6)
    live = changed_at(model.cells, places_of("many", len(model.cells)))
    live[:36] = np.tile(corners, 6)
    changes = diff(model.tiling(live), model.tiling(), share=1.0)
    steps = distance(changes)
    old, new = to_host(changes.old), to_host(changes.new)
    assert same(to_host(steps), REFERENCE.distance(old, new, model.cell_type))
    assert same(to_host(move(model.tiles, changes.tile_offsets, changes.old, steps)), new)


def test_copy_rounds_float32_tensors_and_leaves_the_memory_around_the_target_alone(device: str) -> None:
    model = policy(device)
    wide = np.frombuffer(np.random.default_rng(3).bytes(4 * SIZES[2]), np.uint32).copy()
    rounded = np.empty(len(wide), np.uint16)
    REFERENCE.cast_f32(wide, rounded)
    sources = model.tensors()
    sources[2] = to_device(wide, device).view(torch.float32)
    memory = torch.full((len(model.cells) + 2,), 77, dtype=torch.int16, device=device)
    targets = list(torch.split(memory[1:-1], SIZES))
    copy(model.tiles.over(sources), model.tiles.over(targets))
    expected = model.cells.copy()
    expected[SIZES[0] + SIZES[1] :][: SIZES[2]] = rounded
    assert same(to_host(memory[1:-1]), expected)
    assert memory[[0, -1]].tolist() == [77, 77]


@pytest.mark.parametrize("name", ["U8", "F32", "F64"])
def test_copy_of_cells_of_every_width(device: str, name: str) -> None:
    model = policy(device, name)
    targets = [torch.zeros_like(tensor) for tensor in model.tensors()]
    copy(model.tiling(shift=1), model.tiles.over(targets))
    assert same(flat_cells(targets), model.cells)
