"""Bytes: what each format takes for a changed cell, and the entropy that a coder with the old exponent could reach."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.states import Cells, States
from pulse_kernels import CELL_TYPES


def entropy_bits(before: list[Cells], states: States, step: int) -> float:
    """Return bits a changed cell of an ideal code for a step, given each cell's old exponent.

    The empirical entropy, class by class, of whether a cell changes and, where it does, of its distance in the order
    of the dtype. Free of any cost of describing the statistics, so that no real coder gets quite there on few cells.

    Args:
        before: all cells before the step.
        states: for the layout and the step's changes.
        step: which step.
    """
    types = sorted({tensor.dtype for tensor in states.tensors})
    bits = 0.0
    for dtype in types:
        kind = CELL_TYPES[dtype]
        population, changed = np.zeros(256, np.int64), np.zeros(256, np.int64)
        pairs: list[npt.NDArray[np.uint64]] = []
        for tensor, cells, part in zip(states.tensors, before, states.steps[step], strict=True):
            if tensor.dtype != dtype:
                continue
            population += np.bincount(kind.class_of(cells), minlength=256)
            classes = kind.class_of(part.old)
            changed += np.bincount(classes, minlength=256)
            distance = (_order(part.new, kind.is_float) - _order(part.old, kind.is_float)).astype(np.uint64)
            pairs.append(distance | (classes.astype(np.uint64) << np.uint64(56)))
        bits += float((_entropy(changed, population) + _entropy(population - changed, population)).sum())
        _, counts = np.unique(np.concatenate(pairs), return_counts=True)
        bits += float((counts * -np.log2(counts)).sum() + (changed * np.log2(np.maximum(changed, 1))).sum())
    return bits / max(1, states.changed(step))


def near_share(states: States, step: int) -> float:
    """Return the share of a step's changed cells that move to a neighbouring value."""
    near = total = 0
    for tensor, part in zip(states.tensors, states.steps[step], strict=True):
        is_float = CELL_TYPES[tensor.dtype].is_float
        distance = _order(part.new, is_float) - _order(part.old, is_float)
        one = distance.dtype.type(1)
        near += int(((distance == one) | (distance == ~(one - one))).sum())
        total += len(distance)
    return near / max(1, total)


def _order(cells: Cells, is_float: bool) -> Cells:
    if not is_float:
        return cells
    top = cells.dtype.type(1 << (8 * cells.itemsize - 1))
    return np.where(cells & top, ~cells, cells ^ top)


def _entropy(counts: npt.NDArray[np.int64], of: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return counts * log2(of / counts), 0 for none."""
    bits: npt.NDArray[np.float64] = counts * (np.log2(np.maximum(of, 1)) - np.log2(np.maximum(counts, 1)))
    return bits
