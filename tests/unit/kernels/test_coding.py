"""What the coders need beside ranks: counts of class values, and signs turned back."""

from __future__ import annotations

import numpy as np
import pytest

from pulse_kernels import Backend, CellType
from pulse_kernels.format.symbols import outward
from tests.unit.kernels.inputs import MEMORY, TYPES, random_cells, same

by_name = pytest.mark.parametrize("cell_type", TYPES, ids=lambda t: t.name)


@by_name
@pytest.mark.parametrize("size", [0, 1, 1000])
def test_class_values_are_counted(backend: Backend, cell_type: CellType, size: int):
    cells = random_cells(cell_type.width, size)
    shift, mask = cell_type.class_shift, cell_type.class_mask
    expected = np.zeros(256, np.uint32)
    for cell in cells.tolist():
        expected[(cell >> shift) & mask] += 1
    assert same(backend.count_classes(cells, cell_type), expected)


@by_name
@pytest.mark.parametrize("memory", MEMORY)
def test_steps_are_turned_by_the_old_cells(backend: Backend, cell_type: CellType, memory: str):
    form = MEMORY[memory]
    old, steps = random_cells(cell_type.width, 90), random_cells(cell_type.width, 90, seed=1)
    source = np.random.default_rng(0).permutation(90).astype(np.uint32)
    found = backend.inward(form(old), form(source), form(steps), cell_type)
    assert same(found, outward(steps[source], old, cell_type))


def test_no_changes_turn_to_none(backend: Backend):
    none = np.empty(0, np.uint64)
    assert len(backend.inward(none, np.empty(0, np.uint32), none, TYPES[0])) == 0
