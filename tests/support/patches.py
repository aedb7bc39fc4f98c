"""Whole patches in memory, coded as a push codes them, group by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from pulse_kernels import Backend, Cells
from pulse_registry.format.patch_coding import Coded, CoderChoice, PatchFile, code_change
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.weights.cell_space import Geometry, Group


def encode_patch(
    backend: Backend,
    geometry: Geometry,
    base: int,
    target: int,
    changes: Sequence[SparseUpdate],
    *,
    coder: CoderChoice = "gap",
    base_cells: Callable[[Group], list[Cells]] | None = None,
    map_: Callable[..., Iterator[Any]] = map,
) -> PatchFile:
    """Code the changes from version ``base`` to ``target``; without ``base_cells``, only ``gap`` is possible."""

    def code(change: SparseUpdate) -> Coded:
        base_of = None if base_cells is None else lambda: nullcontext(base_cells(change.group))
        return code_change(backend, change, coder, base_of)

    return PatchFile.of(geometry, base, target, map_(code, [change for change in changes if len(change.index)]))
