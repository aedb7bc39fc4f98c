"""Merging two staged changes gives what a diff across both would."""

from __future__ import annotations

import numpy as np
import pytest

from pulse_kernels.gpu.diff import diff
from pulse_kernels.gpu.merge import merge
from tests.support.sampling import slow_but
from tests.unit.kernels.gpu.inputs import by_group, changed_at, places_of, policy
from tests.unit.kernels.inputs import all_same

PAIRS = [("none", "few"), ("few", "none"), ("the first", "all"), ("all", "the last"), ("all", "all"), ("many", "many")]
PAIRS += [("ends of tiles", "a run"), ("few", "ends of tiles"), ("a run", "few"), ("many", "the first")]


@pytest.mark.parametrize(("first", "second"), slow_but([("few", "none"), ("many", "many")], PAIRS))
def test_merged_changes_are_the_diff_across_both(device: str, first: str, second: str) -> None:
    model = policy(device, sizes=(1, 257, 300, 100), group=500)
    size = len(model.cells)
    middle = changed_at(model.cells, places_of(first, size), seed=1)
    end = changed_at(middle, places_of(second, size), seed=2)
    taken_back = np.arange(0, size, 3)
    end[taken_back] = model.cells[taken_back]  # what both change and the second one takes back drops out
    tilings = [model.tiling(cells) for cells in (model.cells, middle, end)]
    merged = merge(diff(tilings[1], tilings[0], 1.0), diff(tilings[2], tilings[1], 1.0))
    expected = diff(tilings[2], tilings[0], 1.0)
    for one, other in zip(by_group(merged), by_group(expected), strict=True):
        assert all_same(one, other)
    assert merged.tile_offsets.tolist() == expected.tile_offsets.tolist()
    assert merged.group_offsets.tolist() == merged.host_offsets.tolist() == expected.host_offsets.tolist()


@pytest.mark.parametrize("name", ["U8", "F32", "F64"])
def test_merging_a_change_with_its_inverse_leaves_nothing(device: str, name: str) -> None:
    model = policy(device, name, sizes=(300, 5))
    base, other = model.tiling(), model.tiling(changed_at(model.cells, places_of("many", 305)))
    merged = merge(diff(other, base, 1.0), diff(base, other, 1.0))
    assert len(merged) == 0
    assert len(merged.index) == len(merged.old) == len(merged.new) == 0
