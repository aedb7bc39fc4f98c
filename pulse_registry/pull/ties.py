"""Tied tensors: one in a model and two in a version, which fits as long as the version's cells of both agree."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pulse_kernels import Cells
from pulse_registry.format.sparse_update import HostUpdate
from pulse_registry.weights.arrays import Weights, parts

Written = tuple[npt.NDArray[np.int64], Cells]
"""Flat indices in a tensor, strictly increasing, and the cells that go there."""


def first_torn(
    tied: Iterable[tuple[int, int]], changes: HostUpdate, keyframe: Weights | None
) -> tuple[int, int] | None:
    """Return the first pair of tensors whose cells would differ, by number; None if there is none.

    Args:
        tied: pairs of tensors of the same dtype and shape.
        changes: relative to ``keyframe``; or, where that is None, to live weights in which the pairs are one.
        keyframe: the cells that the changes come on top of.
    """
    pairs = list(tied)
    written = _by_tensor({number for pair in pairs for number in pair}, changes)
    for one, other in pairs:
        if not _agree(written[one], written[other], None if keyframe is None else (keyframe, one, other)):
            return one, other
    return None


def _agree(one: Written, other: Written, under: tuple[Weights, int, int] | None) -> bool:
    if under is None:
        return np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])
    keyframe, *numbers = under
    first, second = (keyframe.arrays[number].reshape(-1) for number in numbers)
    differs = first != second
    if np.count_nonzero(differs) > len(one[0]) + len(other[0]):
        return False  # more than the changes can make up for; their list would take too much memory
    at = np.union1d(np.flatnonzero(differs), np.union1d(one[0], other[0])).astype(np.int64)
    cells, others = first[at], second[at]
    cells[np.searchsorted(at, one[0])] = one[1]
    others[np.searchsorted(at, other[0])] = other[1]
    return np.array_equal(cells, others)


def _by_tensor(numbers: set[int], changes: HostUpdate) -> dict[int, Written]:
    """Return what is written into some tensors; groups are in flat order, so that the indices increase."""
    found: dict[int, list[Written]] = {number: [] for number in numbers}
    for change in changes.groups:
        for number, places, chosen in parts(change.group, change.index):
            if number in found:
                found[number].append((places, change.new[chosen]))
    nothing = np.empty(0, np.int64)
    return {
        number: (
            np.concatenate([nothing, *(places for places, _ in lists)]),
            np.concatenate([cells for _, cells in lists]) if lists else np.empty(0, np.uint8),
        )
        for number, lists in found.items()
    }
