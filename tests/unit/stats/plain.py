"""Stats by the plainest way: the recorded states side by side, compared with NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pulse_kernels import CELL_TYPES, CellType
from pulse_kernels.reference.backend import order
from pulse_registry.stats import RunStats

State = Mapping[str, np.ndarray[Any, Any]]
"""Cells by tensor, as unsigned integers."""
Dtypes = Mapping[str, str]


@dataclass(frozen=True)
class Plain:
    """Counts of a step, by tensor."""

    changed: dict[str, int]
    again: dict[str, int] | None
    flipped: dict[str, int]
    sizes: dict[str, dict[int, int]]
    exponents: dict[str, dict[int, tuple[int, int]]]


def plain_step(dtypes: Dtypes, before: State | None, base: State, target: State) -> Plain:
    """Compare two states; ``before`` is the one that the base follows, if the walk came from there."""
    changed = {name: base[name] != target[name] for name in dtypes}
    again = None
    if before is not None:
        again = {name: int(np.sum(changed[name] & (before[name] != base[name]))) for name in dtypes}
    flipped, sizes, exponents = {}, dict[str, dict[int, int]](), dict[str, dict[int, tuple[int, int]]]()
    for name, dtype in dtypes.items():
        cell_type = CELL_TYPES[dtype]
        old, new = base[name][changed[name]], target[name][changed[name]]
        top = 1 << (cell_type.bits - 1)
        signs = [(int(a) ^ int(b)) & top != 0 for a, b in zip(old, new, strict=True)]
        flipped[name] = sum(signs) if cell_type.is_float else 0
        of = sizes.setdefault(dtype, {})
        for a, b in zip(_places(old, cell_type), _places(new, cell_type), strict=True):
            far = (b - a) % (1 << cell_type.bits)  # the way round, which is how a delta has it
            power = min(far, (1 << cell_type.bits) - far).bit_length() - 1
            of[power] = of.get(power, 0) + 1
        if cell_type.is_float:
            kinds = exponents.setdefault(dtype, {})
            for exponent, moved in zip(_exponents(base[name], cell_type), changed[name].tolist(), strict=True):
                cells, moves = kinds.get(exponent, (0, 0))
                kinds[exponent] = cells + 1, moves + moved
    return Plain({n: int(c.sum()) for n, c in changed.items()}, again, flipped, sizes, exponents)


def plain_window(dtypes: Dtypes, states: Sequence[State]) -> tuple[dict[str, int], dict[str, int]]:
    """Return (changed, touched): what differs between the ends, and what any step between them changes."""
    changed = {name: int(np.sum(states[0][name] != states[-1][name])) for name in dtypes}
    pairs = list(itertools.pairwise(states))
    touched = {name: int(np.any([a[name] != b[name] for a, b in pairs], axis=0).sum()) for name in dtypes}
    return changed, touched


def check(found: RunStats, states: Mapping[int, State], *, weights: bool) -> None:
    """Assert that all that was counted is what the states say; ``states`` are those that are not retired."""
    before: dict[int, int] = {}
    for step in found.steps:
        layout = found.layouts[step.layout]
        dtypes = {tensor.name: tensor.dtype for tensor in layout.tensors}
        came = states[before[step.base]] if step.base in before else None
        plain = plain_step(dtypes, came, states[step.base], states[step.target])
        assert dict(zip(dtypes, step.changed.tolist(), strict=True)) == plain.changed
        again = None if step.again is None else dict(zip(dtypes, step.again.tolist(), strict=True))
        assert again == plain.again
        sizes = {dtype: {p: n for p, n in enumerate(counts.tolist()) if n} for dtype, counts in step.sizes.items()}
        assert {d: s for d, s in sizes.items() if s} == {d: s for d, s in plain.sizes.items() if s}
        if weights:
            assert step.flipped is not None
            assert step.exponents is not None
            assert dict(zip(dtypes, step.flipped.tolist(), strict=True)) == plain.flipped
            kinds = {
                dtype: {
                    e: (int(one.cells[e]), int(one.changed[e])) for e in range(256) if one.cells[e] or one.changed[e]
                }
                for dtype, one in step.exponents.items()
            }
            assert kinds == {dtype: of for dtype, of in plain.exponents.items() if of}
        else:
            assert step.flipped is None
            assert step.exponents is None
        before[step.target] = step.base
    seen = {(step.base, step.target) for step in found.steps if step.target == step.base + 1}
    for window in found.windows:
        versions = range(window.base, window.target + 1)
        layout = found.layouts[window.layout]
        dtypes = {tensor.name: tensor.dtype for tensor in layout.tensors}
        changed, touched = plain_window(dtypes, [states[version] for version in versions])
        assert dict(zip(dtypes, window.changed.tolist(), strict=True)) == changed
        assert dict(zip(dtypes, window.touched.tolist(), strict=True)) == touched
    # All windows that the steps allow, and no others.
    ends = max(states, default=0)
    whole = {
        (at, at + length)
        for length in (2, 4, 8, 16, 32)
        for at in range(0, ends + 1, length)
        if all((v, v + 1) in seen for v in range(at, at + length))
    }
    assert {(window.base, window.target) for window in found.windows} == whole
    assert len(found.windows) == len(whole)


def _places(cells: np.ndarray[Any, Any], cell_type: CellType) -> list[int]:
    return [int(place) for place in order(cells, cell_type)]


def _exponents(cells: np.ndarray[Any, Any], cell_type: CellType) -> list[int]:
    return [(int(cell) >> cell_type.class_shift) & cell_type.class_mask for cell in cells.tolist()]
