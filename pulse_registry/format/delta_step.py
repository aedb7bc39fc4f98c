"""Delta steps of one group, joined into one update: every step is checked at the cells as it finds them.

A step moves cells by distances, so that a wrong base would go on unseen to a wrong end: the sums over the cells before
and after each step are what tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pulse_kernels import Backend, Cells, Index, Spans, SpanTable
from pulse_registry.format.patch import Patch
from pulse_registry.format.sparse_update import Delta, SparseUpdate
from pulse_registry.weights.cell_space import Group
from pulse_registry.weights.digest import Digest

_MERGED, _LOOKED_AT = 8, 3
"""What it costs to merge a change into a longer list, and to pass by one in search of another, in cells that are copied
and compared; as measured: BF16, 2 to 64 steps, 0.01 to 5 percent each."""


Decode = Callable[[list[Cells] | None], Delta]
"""Returns a delta, from the group's cells as they are before it where it needs them."""
Move = Callable[[Cells], tuple[Digest, Digest]]
"""Moves all cells of a group by a delta, in place; returns the sums of h over those that it moves, before and after."""
Look = Callable[[Spans], SparseUpdate]
"""Returns what a delta makes of a group's cells, which are only read, with both sums of h."""


class WrongBase(Exception):
    """The cells are not those that a step starts from."""


@dataclass(frozen=True, slots=True)
class DeltaStep:
    """One delta of a chain, not decoded yet.

    Attributes:
        decode: returns its delta; gets the group's cells as they are before it, if ``needs_base``, else None.
        needs_base: whether decoding does.
        changed: cells that it moves, at most.
        before, after: the sums of h over its cells, as committed.
        in_part: only some of these cells are at hand, so that there is nothing to compare with the sums.
        move: does what decoding and a walk do, in less time; None: there is no such way.
        look: does what decoding and a look at the cells do, in less time; None: there is no such way.
    """

    decode: Decode
    needs_base: bool
    changed: int
    before: Digest
    after: Digest
    in_part: bool = False
    move: Move | None = None
    look: Look | None = None


class GroupCells(Protocol):
    """Cells by group, only to be read; see ``Weights``."""

    def holds(self, group: Group) -> bool:
        """Tell whether all cells of the group are here, so that they can be copied."""
        ...

    def spans(self, group: Group) -> list[Cells]:
        """Return the group's cells as 1-D arrays, end to end."""
        ...

    def where(self, group: Group) -> SpanTable | None:
        """Return where the group's cells are; None if not all of them are in memory, in runs."""
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

    def move(cells: Cells) -> tuple[Digest, Digest]:
        with decoding(entry.size):
            return patch.move(backend, group, cells)

    def look(cells: Spans) -> SparseUpdate:
        with decoding(entry.size):
            return patch.look(backend, group, cells)

    sums = (entry.new_sum, entry.old_sum) if inverse else (entry.old_sum, entry.new_sum)
    at_once = move if entry.coder == "gap" and not inverse else None
    return DeltaStep(decode, entry.coder == "class", entry.changed, *sums, move=at_once, look=None if inverse else look)


def join_steps(backend: Backend, group: Group, base: GroupCells, steps: Sequence[DeltaStep]) -> SparseUpdate:
    """Return what all steps together change in ``base``, which is only read.

    Takes O(changed) memory, or a copy of the group's cells, where that is the cheaper way or a step needs it.

    Raises:
        WrongBase: a step does not fit the cells that it finds.
    """
    if any(step.needs_base for step in steps[1:]) or (
        base.holds(group) and passes_all(group.cells, [step.changed for step in steps])
    ):
        cells, spans = base.copy_of(group), base.spans(group)
        walk_steps(backend, group, [cells], steps)
        return taken_back(backend, group, spans, np.split(cells, np.cumsum([len(span) for span in spans])[:-1]))
    where = base.where(group)
    if len(steps) == 1 and steps[0].look is not None and where is not None:
        change = steps[0].look(where)
        _check(steps[0], *change.sums(backend))
        return change
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


def passes_all(cells: int, changed: Sequence[int]) -> bool:
    """Tell whether steps over so many cells cost less in a copy of all of them than in the list of those that change.

    A copy takes two passes over all cells. A list is made by merging those of the steps in pairs, and each step then
    looks for its cells in all of it.

    Args:
        cells: of the group.
        changed: that each step moves.
    """
    if len(changed) < 2:
        return False
    listed = sum(changed)
    levels = (len(changed) - 1).bit_length()
    return _MERGED * levels * listed + _LOOKED_AT * len(changed) * min(listed, cells) > cells


def walk_steps(backend: Backend, group: Group, spans: list[Cells], steps: Sequence[DeltaStep]) -> None:
    """Move the cells of a group, as arrays end to end, by one step after the other, in place; the faster in one array.

    Raises:
        WrongBase: a step does not fit the cells that it finds; some are moved.
    """
    for step in steps:
        if step.move is not None and len(spans) == 1:
            _check(step, *step.move(spans[0]))
            continue
        delta = step.decode(spans if step.needs_base else None)
        sums = backend.move_spans(spans, delta.index, delta.distance, group.cell_type, group.start)
        _check(step, *(Digest(*lanes) for lanes in sums))


def taken_back(backend: Backend, group: Group, base: Sequence[Cells], cells: Sequence[Cells]) -> SparseUpdate:
    """Return what leads from a group's base to its cells, both as arrays end to end; the cells become the base's."""
    index, new, old, after, before = backend.advance_spans(base, cells, group.start)
    return SparseUpdate(group, index, old, new, [(Digest(*before), Digest(*after))])


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
