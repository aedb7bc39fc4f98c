"""Bandwidth: the library's passes over whole models, against NumPy that only moves or reads the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np

from benchmarks.states import Cells, Live, States
from benchmarks.timing import interleaved
from pulse_kernels import Backend
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.model import layout_of, read_model

Map: TypeAlias = Callable[..., Iterator[Any]]
_PIECE = 1 << 24
"""Bytes that a thread copies or reads at a time; the library works on groups of the same size."""


def geometry_of(states: States) -> Geometry:
    """Return the geometry under which these states are published."""
    return Geometry(layout_of(read_model(Live(states).model()), "keep"))


def weights_of(geometry: Geometry, states: States, cells: Sequence[Cells]) -> Weights:
    """Return cells as the library's weights, without a copy."""
    by_name = {t.name: c.reshape(t.shape) for t, c in zip(states.tensors, cells, strict=True)}
    return Weights(geometry, [by_name[tensor.name] for tensor in geometry.layout.tensors])


def measure_bandwidth(
    states: States, backend: Backend, threads: int, repeats: int
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Time copy, read, diff, diff of FP32 masters and digest of one state; return seconds and the bytes each touches.

    Diff and digest go through the library's groups and kernels as a push does, in a pool of threads: the diff takes the
    changes over into a shadow and sums them up, forth and back between two states. The digest, and the read of the same
    arrays that it is held against, also run in one thread.
    """
    geometry = geometry_of(states)
    old, new = Live(states), Live(states)
    new.go(1)
    base, live = (weights_of(geometry, states, side.cells) for side in (old, new))
    shadow = _Follower(backend, base)
    changed = states.changed(0)
    source, target = np.ones(states.nbytes, np.uint8), np.zeros(states.nbytes, np.uint8)
    pieces = [slice(at, at + _PIECE) for at in range(0, states.nbytes, _PIECE)]
    masters = None
    if _all_bf16(states):
        masters = [Weights(geometry, [_masters(cells) for cells in side.arrays]) for side in (base, live)]

    with ThreadPoolExecutor(threads) as pool:
        works = {
            "copy": lambda: _run(pool.map, lambda piece: np.copyto(target[piece], source[piece]), pieces),
            "read": lambda: _run(pool.map, lambda group: read_group(base, group), geometry.groups),
            "diff": lambda: shadow.turn(pool.map, [base, live]),
            "digest": lambda: base.digest(backend, pool.map),
            "read_core": lambda: _run(map, lambda group: read_group(base, group), geometry.groups),
            "digest_core": lambda: base.digest(backend, map),
        }
        touched = {
            "copy": 2 * states.nbytes,
            "read": states.nbytes,
            "diff": 2 * states.nbytes + 8 * changed,
            "digest": states.nbytes,
            "read_core": states.nbytes,
            "digest_core": states.nbytes,
        }
        if masters is not None:
            works["diff_f32"] = lambda: shadow.turn(pool.map, masters)
            touched["diff_f32"] = 3 * states.nbytes + 8 * changed
        for _ in range(2):
            found = shadow.turn(map, [base, live])
            if found != changed:
                raise AssertionError(f"the diff finds {found} changed cells, NumPy {changed}")
        return interleaved(works, repeats), touched


def _run(map_: Map, work: Callable[[Any], Any], items: Sequence[Any]) -> None:
    for _ in map_(work, items):
        pass


def read_group(weights: Weights, group: Group) -> None:
    """Read all cells of a group."""
    # The arrays that the digest reads: whether these lie in huge pages makes a difference of a third.
    for cells in weights.spans(group):
        part = cells.view(np.uint8)
        np.bitwise_or.reduce(part[: len(part) // 8 * 8].view(np.uint64))


class _Follower:
    """A shadow that goes forth and back between two states, so that each pass finds the changes between them."""

    def __init__(self, backend: Backend, start: Weights) -> None:
        self._backend = backend
        self._cells = Weights.in_one_piece(start.geometry)
        self._at = 0
        for array, cells in zip(self._cells.arrays, start.arrays, strict=True):
            array[...] = cells

    def turn(self, map_: Map, states: Sequence[Weights]) -> int:
        """Take over the state that the shadow is not at; return how many cells changed."""
        self._at = 1 - self._at
        live = states[self._at]

        def work(group: Group) -> int:
            index, *_ = self._backend.advance_spans(live.spans(group), self._cells.spans(group), group.start)
            return len(index)

        return sum(map_(work, live.geometry.groups))


def _masters(cells: Cells) -> Cells:
    return cells.astype(np.uint32) << np.uint32(16)


def _all_bf16(states: States) -> bool:
    return all(tensor.dtype == "BF16" for tensor in states.tensors)
