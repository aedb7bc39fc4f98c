"""Digests on the device are those of the reference, group by group."""

from __future__ import annotations

import numpy as np
import pytest

from pulse_kernels.gpu.diff import diff
from pulse_kernels.gpu.digest import as_lanes, digest, digest_sparse
from tests.unit.kernels.gpu.inputs import FLAT, PATTERNS, REFERENCE, Policy, by_group, changed_at, places_of, policy


def check_whole(model: Policy, shift: int = 0) -> None:
    expected = [
        list(REFERENCE.digest(cells, start))
        for cells, start in zip(model.groups(model.cells), model.starts(), strict=True)
    ]
    assert as_lanes(digest(model.tiling(shift=shift))) == expected


def check_sparse(model: Policy, live: np.ndarray) -> None:
    changes = diff(model.tiling(live), model.tiling())
    expected = []
    for (index, old, new), start in zip(by_group(changes), model.starts(), strict=True):
        sums = (REFERENCE.digest_sparse(index, cells, start) for cells in (old, new))
        expected.append([lane for lanes in sums for lane in lanes])
    assert as_lanes(digest_sparse(changes)) == expected


@pytest.mark.parametrize("name", ["U8", "BF16", "F32", "F64"])
def test_digest_of_cells_of_every_width(device: str, name: str) -> None:
    check_whole(policy(device, name))


@pytest.mark.parametrize("flat", [0, 1023, FLAT])
@pytest.mark.parametrize("tile", [256, 1024, 2048])
def test_digest_of_tiles_that_begin_anywhere_in_a_block(device: str, tile: int, flat: int) -> None:
    check_whole(policy(device, sizes=(4096, 5, 2048), group=5000, tile=tile, flat=flat))


def test_digest_of_tensors_that_begin_at_an_odd_cell(device: str) -> None:
    check_whole(policy(device, sizes=(2048, 1024), group=2048, tile=1024, flat=0), shift=1)


@pytest.mark.parametrize("value", [0x0000, 0xFFFF])
def test_digest_of_cells_that_are_all_the_same(device: str, value: int) -> None:
    model = policy(device, sizes=(2048,), group=2048, tile=1024, flat=0)
    model.cells[:] = value
    check_whole(model)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_sums_over_changes_are_those_of_the_reference(device: str, pattern: str) -> None:
    model = policy(device)
    check_sparse(model, changed_at(model.cells, places_of(pattern, len(model.cells))))


@pytest.mark.parametrize("name", ["U8", "F32", "F64"])
def test_sums_over_changes_of_cells_of_every_width(device: str, name: str) -> None:
    model = policy(device, name)
    check_sparse(model, changed_at(model.cells, places_of("a run", len(model.cells))))


def test_sums_over_changes_lead_from_the_old_digest_to_the_new_one(device: str) -> None:
    model = policy(device)
    live = changed_at(model.cells, places_of("many", len(model.cells)))
    sums = digest_sparse(diff(model.tiling(live), model.tiling()))
    moved = digest(model.tiling()) + sums[:, 2:] - sums[:, :2]
    assert as_lanes(moved) == as_lanes(digest(model.tiling(live)))
