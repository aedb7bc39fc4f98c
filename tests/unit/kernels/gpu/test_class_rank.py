"""Class counts and ranks on the device are the reference's."""

from __future__ import annotations

import numpy as np
import pytest

from pulse_kernels import Cells
from pulse_kernels.gpu.coding.class_rank import Classing, class_counts, class_ranks, rows_of
from tests.unit.kernels.gpu.coding import Step, weights
from tests.unit.kernels.gpu.inputs import PATTERNS, REFERENCE, Policy, changed_at, places_of, policy, to_host

SIZES = (1, 255, 257, 300)
"""Cells of the tensors, in groups of 500: a handful of tiles, some of them short."""


def small(device: str, name: str = "BF16", tile: int = 256) -> Policy:
    model = policy(device, name, SIZES, group=500, tile=tile)
    if name == "BF16":
        model.cells[:] = weights(len(model.cells))
    return model


def check(model: Policy, new: Cells, first: int, classes: int, shift: int = 0) -> None:
    step = Step(model, new)
    groups = step.groups()
    tiling, changes = step.tiling(shift), step.changes()
    classing = Classing.of(model.tiles, np.full(len(groups), first), np.full(len(groups), classes))
    counts = class_counts(tiling, classing)
    population = counts.population.cpu().numpy()
    found = np.split(to_host(class_ranks(tiling, changes, classing, counts)), changes.host_offsets[1:-1])
    for (base, index, old, _), ranks, known in zip(groups, found, population, strict=True):
        rank, kind, expected = REFERENCE.class_ranks([base], index, old, model.cell_type, first, classes)
        assert np.array_equal(known[:classes], expected)
        assert not known[classes:].any()
        assert np.array_equal(ranks & 0xFFFFFF, rank)
        assert np.array_equal(ranks >> 24, kind)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_ranks_are_those_of_the_reference(device: str, pattern: str) -> None:
    model = small(device)
    check(model, changed_at(model.cells, places_of(pattern, len(model.cells))), 112, 9)


@pytest.mark.parametrize(("first", "classes"), [(0, 1), (0, 32), (224, 32), (117, 2), (120, 17)])
def test_any_window_of_classes_is_counted(device: str, first: int, classes: int) -> None:
    model = small(device)
    check(model, changed_at(model.cells, places_of("few", len(model.cells))), first, classes)


@pytest.mark.parametrize("name", ["F8_E4M3", "F16", "F32", "F64", "I64"])
def test_cells_of_every_width_are_classed(device: str, name: str) -> None:
    model = small(device, name)
    check(model, changed_at(model.cells, places_of("few", len(model.cells))), 3, 14)


def test_tensors_may_begin_at_any_cell(device: str) -> None:
    model = small(device)
    check(model, changed_at(model.cells, places_of("ends of tiles", len(model.cells))), 112, 9, shift=1)


@pytest.mark.parametrize("tile", [8, 64, 512])
def test_tiles_may_be_of_any_size(device: str, tile: int) -> None:
    model = policy(device, "BF16", (100, 37), group=90, tile=tile)
    check(model, changed_at(model.cells, places_of("many", len(model.cells))), 100, 32)


def test_tiles_that_are_too_large_to_count_in_are_refused(device: str) -> None:
    with pytest.raises(ValueError, match="tiles of 65536 cells are too large"):
        rows_of(policy(device, "BF16", (100,), tile=2**16).tiles)
