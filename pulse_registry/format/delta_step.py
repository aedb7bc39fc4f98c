"""Delta steps of one group, joined into one update: every step is checked at the cells as it finds them.

A step moves cells by distances, so that a wrong base would go on unseen to a wrong end: the sums over the cells before
and after each step are what tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from pulse_kernels import Backend, Cells, Index
from pulse_registry.format.patch import Patch
from pulse_registry.format.sparse_update import Delta, SparseUpdate
from pulse_registry.weights.cell_space import Group
from pulse_registry.weights.digest import Digest


class WrongBase(Exception):
    """The cells are not those that a step starts from."""


@dataclass(frozen=True, slots=True)
class DeltaStep:
    """One delta of a chain, not decoded yet.

    Attributes:
        decode: returns its delta; gets the group's cells as they are before it, if ``needs_base``, else None.
        needs_base: whether decoding does.
        before, after: the sums of h over its cells, as committed.
        in_part: only some of these cells are at hand, so that there is nothing to compare with the sums.
    """

    decode: Callable[[list[Cells] | None], Delta]
    needs_base: bool
    before: Digest
    after: Digest
    in_part: bool = False


class GroupCells(Protocol):
    """Cells by group, only to be read; see ``Weights``."""

    def spans(self, group: Group) -> list[Cells]:
        """Return the group's cells as 1-D arrays, end to end."""
        ...

    def copy_of(self, group: Group) -> Cells:
        """Return the group's cells as one new array."""
        ...

    def gather(self, backend: Backend, group: Group, index: Index) -> Cells:
        """Return the cells at a group-local index."""
        ...

    def step(
        self, backend: Backend, group: Group, index: Index, distance: Cells
    ) -> tuple[Cells, Cells, Digest, Digest]:
        """Return the cells at a group-local index, the same moved by ``distance``, and both sums of h."""
        ...


def patch_step(
    backend: Backend,
    group: Group,
    patch: Patch,
    *,
    inverse: bool,
    decoding: Callable[[int], AbstractContextManager[None]] = lambda nbytes: nullcontext(),
) -> DeltaStep:
    """Return what a patch changes of a group that it names; ``inverse`` needs coder ``gap``.

    ``decoding`` is entered while the group's bytes are decoded, with how many there are.
    """
    entry = patch.entries[group.number]

    def decode(base: list[Cells] | None) -> Delta:
        with decoding(entry.size):
            delta = patch.decode(backend, group, base)
            return -delta if inverse else delta

    sums = (entry.new_sum, entry.old_sum) if inverse else (entry.old_sum, entry.new_sum)
    return DeltaStep(decode, entry.coder == "class", *sums)


def join_steps(backend: Backend, group: Group, base: GroupCells, steps: Sequence[DeltaStep]) -> SparseUpdate:
    """Return what all steps together change in ``base``, which is only read.

    Takes O(changed) memory; a step after the first that needs its base takes a copy of the group's cells.

    Raises:
        WrongBase: a step does not fit the cells that it finds.
    """
    if any(step.needs_base for step in steps[1:]):
        return _through_all_cells(backend, group, base, steps)
    deltas = [step.decode(base.spans(group) if step.needs_base else None) for step in steps]
    if len(steps) == 1:
        index = deltas[0].index
        old, new, *sums = base.step(backend, group, index, deltas[0].distance)
        _check(steps[0], *sums)
        return SparseUpdate(group, index, old, new, [(sums[0], sums[1])])
    index = _union(backend, [delta.index for delta in deltas])
    old = base.gather(backend, group, index)
    cells = old.copy()
    for step, delta in zip(steps, deltas, strict=True):
        _advance(backend, group, step, delta, cells, backend.locate(index, delta.index))
    kept = old != cells
    return SparseUpdate(group, index[kept], old[kept], cells[kept])


def _through_all_cells(backend: Backend, group: Group, base: GroupCells, steps: Sequence[DeltaStep]) -> SparseUpdate:
    cells = base.copy_of(group)
    for step in steps:
        delta = step.decode([cells] if step.needs_base else None)
        _, moved, *sums = backend.step(cells, delta.index, delta.distance, group.cell_type, group.start)
        _check(step, *(Digest(*lanes) for lanes in sums))
        backend.scatter(cells, delta.index, moved)
    return SparseUpdate(group, *backend.diff(cells, base.copy_of(group)))


def _advance(backend: Backend, group: Group, step: DeltaStep, delta: Delta, cells: Cells, places: Index) -> None:
    found = backend.gather(cells, places)
    moved = backend.move(found, delta.distance, group.cell_type)
    _check(step, *(Digest(*lanes) for lanes in backend.digest_changes(delta.index, found, moved, group.start)))
    backend.scatter(cells, places, moved)


def _check(step: DeltaStep, before: Digest, after: Digest) -> None:
    if not step.in_part and (before, after) != (step.before, step.after):
        raise WrongBase


def _union(backend: Backend, lists: list[Index]) -> Index:
    # Pairwise, so that k lists cost O(total log k).
    while len(lists) > 1:
        pairs = [backend.union(*pair) for pair in zip(lists[::2], lists[1::2], strict=False)]
        lists = pairs + lists[len(lists) // 2 * 2 :]
    return lists[0]
