"""Models cut into what the ranks of a job hold: whole tensors, rows, columns, boxes, runs, strided views, nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pulse_registry import Slice

Tensors = Mapping[str, npt.NDArray[Any]]
Rank = dict[str, Any]


def cut(model: Tensors, ranks: int, seed: int) -> list[Rank]:
    """Deal the cells of a model to ranks, each cell to one of them at least; what they hold begins as zeros.

    A tensor is whole on all ranks or on one, in rows or in boxes along a random dimension, uneven and perhaps empty, in
    runs of its flattened cells, or in several slices a rank; some slices are views with gaps between their cells.
    """
    rng = np.random.default_rng(seed)
    dealt: list[Rank] = [{} for _ in range(ranks)]
    for name, array in model.items():
        how = rng.choice(["all", "one", "box", "run", "several"])
        if how == "all" or not array.size:
            for rank in dealt:
                rank[name] = _room(rng, array.dtype, array.shape)
        elif how == "one":
            dealt[rng.integers(ranks)][name] = _room(rng, array.dtype, array.shape)
        elif how == "run" or not array.ndim:
            for rank, (start, stop) in zip(dealt, _cuts(rng, array.size, ranks), strict=True):
                rank[name] = Slice(_room(rng, array.dtype, (stop - start,)), of=array.shape, at=start)
        else:
            boxes = list(_boxes(rng, array.shape, ranks if how == "box" else 2 * ranks))
            slices = [Slice(_room(rng, array.dtype, sizes), of=array.shape, at=offsets) for offsets, sizes in boxes]
            for number, rank in enumerate(dealt):
                rank[name] = slices[number] if how == "box" else slices[number::ranks]
    return dealt


def held(rank: Mapping[str, Any]) -> dict[str, list[bytes]]:
    """Return the bytes that a rank holds of each tensor, slice by slice."""
    return {name: [np.ascontiguousarray(part).tobytes() for part, _ in parts(value)] for name, value in rank.items()}


def wanted(rank: Mapping[str, Any], model: Tensors) -> dict[str, list[bytes]]:
    """Return the bytes that a rank should hold of a model, as NumPy cuts them out."""
    found: dict[str, list[bytes]] = {}
    for name, value in rank.items():
        for part, at in parts(value):
            array = model[name]
            if at is None:
                chosen = array
            elif isinstance(at, int):
                chosen = array.reshape(-1)[at : at + part.size]
            else:
                chosen = array[tuple(slice(o, o + s) for o, s in zip(at, part.shape, strict=True))]
            found.setdefault(name, []).append(np.ascontiguousarray(chosen).tobytes())
    return found


def cells_of(rank: Mapping[str, Any]) -> int:
    """Return how many cells a rank holds."""
    return sum(part.size for value in rank.values() for part, _ in parts(value))


def cells(found: Mapping[str, list[bytes]], model: Tensors) -> list[bytes]:
    """Return what ``held`` or ``wanted`` found, cell by cell."""
    return [
        data[at : at + model[name].itemsize]
        for name, every in found.items()
        for data in every
        for at in range(0, len(data), model[name].itemsize)
    ]


def flip(rank: Mapping[str, Any], cell: int) -> None:
    """Change a bit of one of the cells that a rank holds, by its place in ``cells``."""
    for array in [part for value in rank.values() for part, _ in parts(value)]:
        if 0 <= cell < array.size:
            array.flat[cell] ^= 1
        cell -= array.size


def parts(value: Any) -> list[tuple[npt.NDArray[Any], Any]]:
    """Return the arrays of a rank's value of a tensor, each with where it begins; None: it is the whole tensor."""
    if isinstance(value, list):
        return [part for one in value for part in parts(one)]
    return [(value.tensor, value.at)] if isinstance(value, Slice) else [(value, None)]


def _room(rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int]) -> npt.NDArray[Any]:
    if rng.random() < 0.3 and math.prod(shape):
        return np.zeros((*shape, 2), dtype)[..., 1]
    return np.zeros(shape, dtype)


def _cuts(rng: np.random.Generator, size: int, pieces: int) -> list[tuple[int, int]]:
    ends = [0, *sorted(rng.integers(0, size + 1, pieces - 1).tolist()), size]
    return list(itertools.pairwise(ends))


def _boxes(
    rng: np.random.Generator, shape: Sequence[int], pieces: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    dim = int(rng.integers(len(shape)))
    found = []
    for start, stop in _cuts(rng, shape[dim], pieces):
        offsets, sizes = [0] * len(shape), list(shape)
        offsets[dim], sizes[dim] = start, stop - start
        found.append((tuple(offsets), tuple(sizes)))
    return found


def put(rank: Mapping[str, Any], model: Tensors) -> None:
    """Make a rank hold its cells of a model."""
    for name, value in rank.items():
        for part, at in parts(value):
            array = model[name]
            if at is None:
                part[...] = array
            elif isinstance(at, int):
                part[...] = array.reshape(-1)[at : at + part.size]
            else:
                part[...] = array[tuple(slice(o, o + s) for o, s in zip(at, part.shape, strict=True))]
