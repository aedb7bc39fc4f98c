"""Bandwidth: the library's passes over whole models, against NumPy that only moves or reads the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np

from benchmarks.states import Cells, Live, States
from benchmarks.timing import interleaved
from pulse_kernels import Backend
from pulse_registry.geometry import Geometry, Group
from pulse_registry.model import layout_of, read_model
from pulse_registry.weights import Weights

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

    Diff and digest go through the library's groups and kernels as a push does, in a pool of threads; the digest and
    the read that it is held against also in one thread.
    """
    geometry = geometry_of(states)
    old, new = Live(states), Live(states)
    new.go(1)
    base, live = (weights_of(geometry, states, side.cells) for side in (old, new))
    changed = states.changed(0)
    source, target = np.ones(states.nbytes, np.uint8), np.zeros(states.nbytes, np.uint8)
    pieces = [slice(at, at + _PIECE) for at in range(0, states.nbytes, _PIECE)]
    masters = [c.astype(np.uint32) << np.uint32(16) for c in live.arrays] if _all_bf16(states) else None

    with ThreadPoolExecutor(threads) as pool:
        works = {
            "copy": lambda: _run(pool.map, lambda piece: np.copyto(target[piece], source[piece]), pieces),
            "read": lambda: _run(pool.map, lambda piece: _read(source[piece]), pieces),
            "diff": lambda: _run(pool.map, lambda group: _diff(backend.diff, live, base, group), geometry.groups),
            "digest": lambda: base.digest(backend, pool.map),
            "read_core": lambda: _run(map, lambda piece: _read(source[piece]), pieces),
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
            wide = Weights(geometry, masters)
            works["diff_f32"] = lambda: _run(
                pool.map, lambda group: _diff(backend.diff_f32, wide, base, group), geometry.groups
            )
            touched["diff_f32"] = 3 * states.nbytes + 8 * changed
        found = sum(len(index) for g in geometry.groups for index, _, _ in _diff(backend.diff, live, base, g))
        if found != changed:
            raise AssertionError(f"the diff finds {found} changed cells, NumPy {changed}")
        return interleaved(works, repeats), touched


def _run(map_: Map, work: Callable[[Any], Any], items: Sequence[Any]) -> None:
    for _ in map_(work, items):
        pass


def _read(part: Cells) -> int:
    whole = part[: len(part) // 8 * 8].view(np.uint64)
    return int(np.bitwise_or.reduce(whole))


def _diff(diff: Callable[[Cells, Cells], Any], live: Weights, base: Weights, group: Group) -> list[Any]:
    return [diff(a, b) for a, b in zip(live.spans(group), base.spans(group), strict=True)]


def _all_bf16(states: States) -> bool:
    return all(tensor.dtype == "BF16" for tensor in states.tensors)
