"""Models cut into what the ranks of a job hold: whole tensors, rows, columns, boxes, runs, strided views, nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
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


def cut_any(model: Tensors, ranks: int, seed: int) -> list[Rank]:
    """Deal a model's cells as ``cut`` does, and in ways that few jobs have.

    A tensor may be cut along all of its dimensions, and a box of it be held by several ranks. Names of one array are
    dealt alike, and lie in one memory. Each rank has a name at least, of a slice without a cell perhaps.
    """
    rng = np.random.default_rng(seed)
    dealt: list[Rank] = [{} for _ in range(ranks)]
    names: dict[int, str] = {}
    for name, array in model.items():
        first = names.setdefault(id(array), name)
        if first != name:
            for rank in dealt:
                rank |= {name: rank[first]} if first in rank else {}
        elif array.size and array.ndim and rng.random() < 0.5:
            for offsets, sizes in _grid(rng, array.shape):
                copies = int(rng.choice([1, 1, 1, 2, ranks]))
                for rank in rng.choice(ranks, min(copies, ranks), replace=False).tolist():
                    room = _room(rng, array.dtype, sizes)
                    dealt[rank].setdefault(name, []).append(Slice(room, of=array.shape, at=offsets))
        else:
            for rank, found in zip(dealt, cut({name: array}, ranks, int(rng.integers(2**32))), strict=True):
                rank |= found
    for rank in dealt:
        name, array = next(iter(model.items()))
        if not rank:
            rank[name] = Slice(np.zeros(0, array.dtype), of=array.shape, at=0)
    return dealt


def untied(rank: Rank) -> Rank:
    """Return what a rank holds, with memory of its own for each name."""
    names: dict[int, str] = {}
    return {name: value if names.setdefault(id(value), name) == name else _like(value) for name, value in rank.items()}


def _like(value: Any) -> Any:
    if isinstance(value, list):
        return [_like(one) for one in value]
    return Slice(_like(value.tensor), of=value.of, at=value.at) if isinstance(value, Slice) else np.zeros_like(value)


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


def _grid(rng: np.random.Generator, shape: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the boxes of a tensor that is cut at random places along each dimension."""
    for box in itertools.product(*(_cuts(rng, size, int(rng.integers(1, 4))) for size in shape)):
        yield tuple(start for start, _ in box), tuple(stop - start for start, stop in box)


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
