"""Bands: the groups that are walked together, as many as their memory allows, however large the model is.

A band goes through all steps of a stretch before the next one begins. Of each patch it reads the ranges of its groups,
and of a keyframe, where the weights are followed, the pieces that hold their cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from pulse_kernels import Cells
from pulse_registry.context import Context
from pulse_registry.errors import CorruptObject, NotFound
from pulse_registry.format.delta_step import patch_step
from pulse_registry.format.patch import Patch
from pulse_registry.format.sparse_update import Delta, join
from pulse_registry.log import RunState
from pulse_registry.log.leg import Leg
from pulse_registry.pull.failover import Routes
from pulse_registry.pull.fetch import begin_patches
from pulse_registry.pull.group_stream import arriving, in_pool
from pulse_registry.pull.keyframe_slices import fetch_cells
from pulse_registry.stats.counts import WINDOWS
from pulse_registry.stats.group_walk import GroupStep, GroupWalk
from pulse_registry.stats.steps import Step
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_schemas import KeyframeRef

BAND_BYTES = 256 << 20
"""What the groups of a band take at most, about, unless it is one group."""
_BATCH_BYTES, _BATCH = 32 << 20, 32
"""Bytes, and number, of the steps whose patches are read side by side."""

Batch = tuple[Step, ...]
Take = Callable[[GroupWalk, Cells, int, Cells], None]
"""Takes the cells of a group that are held from ``start`` on, that ``start``, and those of a keyframe."""


def bands(geometry: Geometry, steps: Sequence[Step], *, weights: bool) -> list[range]:
    """Cut the groups of a layout into bands: ranges of their numbers.

    Args:
        geometry: of the layout.
        steps: that are to be walked.
        weights: whether cells are kept.
    """
    # Which cells a keyframe changes nobody knows before; a trainer takes one where they are too many for a patch.
    whole = any(step.legs[0].keyframe is not None for step in steps)
    most = max((leg.patch.changed for step in steps for leg in step.legs if leg.patch), default=0)
    share = 1.0 if whole else min(1.0, most / max(1, geometry.cells))
    found, first, nbytes = [], 0, 0.0
    for number, cells in enumerate(geometry.groups.cells.tolist()):
        width = geometry.groups.cell_type(number).width
        needs = cells * (bytes_a_cell(share, width) + (width if weights else 0))
        if number > first and nbytes + needs > BAND_BYTES:
            found.append(range(first, number))
            first, nbytes = number, 0.0
        nbytes += needs
    return [*found, range(first, len(geometry.groups))]


def bytes_a_cell(share: float, width: int) -> float:
    """Return what a cell takes in the walk of a group, where steps change this share of the cells.

    That is: of each window that waits for its other half, where it was touched and what that came to, in the worst case
    of steps that change other cells each; and of the step itself what it changes, and what is made of that.

    Args:
        share: from 0 to 1.
        width: bytes of a cell.
    """
    waiting = sum(min(1.0, share * (length // 2)) for length in WINDOWS)
    return waiting * (4 + 4 + width) + 4 * share * (4 + width)


class Band:
    """One band's walk through a stretch. For one thread; it spreads the groups over the context's."""

    def __init__(self, context: Context, state: RunState, geometry: Geometry, numbers: range) -> None:
        """Begin before the first step."""
        self._context, self._state, self._geometry = context, state, geometry
        self._walks = {n: GroupWalk(context.backend, geometry.groups[n]) for n in numbers}
        self._whole = len(numbers) == len(geometry.groups)

    def load(self, version: int) -> None:
        """Fetch the groups' cells at a version, by the cheapest route whose objects are whole.

        Raises:
            Gone, NotFound, CorruptObject: nothing leads there but by an object that is gone or damaged.
            StoreUnavailable: the store failed.
        """
        routes = Routes(self._context, self._state, version, have=None)
        while True:
            route = routes.cheapest()
            try:
                for leg in route.legs:
                    self._follow(leg)
            except (NotFound, CorruptObject) as error:
                routes.avoid(route, error)
            else:
                return

    def walk(self, steps: Sequence[Step]) -> Iterator[tuple[Step, Mapping[int, GroupStep]]]:
        """Yield each step and what it changes, by group.

        Raises:
            NotFound, CorruptObject: an object is gone or damaged; the message names it.
            StoreUnavailable: the store failed.
        """
        for batch in _batches(steps):
            found = self._walk(batch)
            for place, step in enumerate(batch):
                yield step, {number: counted[place] for number, counted in found.items()}

    def _walk(self, batch: Batch) -> dict[int, list[GroupStep]]:
        """Walk a batch: patches alone, or one step that begins with a keyframe."""
        keyframe = batch[0].legs[0].keyframe
        before = {} if keyframe is None else self._differences(keyframe)
        legs = [[leg for leg in step.legs if leg.patch is not None] for step in batch]
        patches = iter(self._begin([leg for chain in legs for leg in chain]))
        chains = [[(leg, next(patches)) for leg in chain] for chain in legs]

        def work(number: int) -> list[GroupStep]:
            walk, deltas = self._walks[number], [before[number]] if number in before else []
            counted = []
            for step, chain in zip(batch, chains, strict=True):
                delta = join(self._context.backend, [*deltas, *self._deltas(walk, chain)], walk.group)
                counted.append(walk.step(step.base, step.target, delta))
            return counted

        numbers = list(self._walks)
        arrived = arriving(
            [patch for chain in chains for _, patch in chain], numbers, self._context.fetchers, Timeline()
        )
        return dict(zip(numbers, in_pool(self._context.pool, work, arrived), strict=True))

    def _begin(self, legs: Sequence[Leg]) -> list[Patch]:
        context, refs = self._context, [leg.patch for leg in legs if leg.patch is not None]
        run, geometry = self._state.run, self._geometry
        return begin_patches(context.store, run, geometry, refs, context.fetch_map, head_only=not self._whole)

    def _deltas(self, walk: GroupWalk, chain: Sequence[tuple[Leg, Patch]]) -> Iterator[Delta]:
        """Yield what patches change of a group, one after the other, and bring its cells along."""
        backend, group = self._context.backend, walk.group
        for leg, patch in chain:
            if group.number not in patch.entries:
                continue
            link = patch_step(backend, group, patch, inverse=leg.kind == "inverse")
            delta = link.decode([walk.cells] if link.needs_base and walk.cells is not None else None)
            if walk.cells is not None and walk.move(delta) != (link.before, link.after):
                raise CorruptObject(
                    f"{patch.ref.object.key}: it does not fit what leads to version {leg.base}: cells of group "
                    f"{group.number} differ from what it says"
                )
            yield delta

    def _follow(self, leg: Leg) -> None:
        """Bring the cells along a leg, and count nothing."""
        if leg.keyframe is not None:
            for walk in self._walks.values():
                walk.cells = np.empty(walk.group.cells, walk.group.cell_type.dtype)
            self._fetch(leg.keyframe, _fill)
            return
        [patch] = self._begin([leg])

        def work(number: int) -> None:
            for _ in self._deltas(self._walks[number], [(leg, patch)]):
                pass

        in_pool(self._context.pool, work, arriving([patch], list(self._walks), self._context.fetchers, Timeline()))

    def _differences(self, keyframe: KeyframeRef) -> dict[int, Delta]:
        """Make the cells those of a keyframe, and return what that changes."""
        found: dict[int, list[tuple[int, Delta]]] = {number: [] for number in self._walks}
        backend = self._context.backend

        def take(walk: GroupWalk, held: Cells, start: int, cells: Cells) -> None:
            index, old, new = backend.diff(cells, held)
            distance = backend.distance(old, new, walk.group.cell_type)
            found[walk.group.number].append((start, Delta(index + np.uint32(start), distance)))
            held[:] = cells

        self._fetch(keyframe, take)
        return {number: _end_to_end(found.pop(number), walk.group) for number, walk in self._walks.items()}

    def _fetch(self, keyframe: KeyframeRef, take: Take) -> None:
        """Fetch the groups' cells in a keyframe; ``take`` gets them piece by piece, from any thread."""
        geometry, taken = self._geometry, list[int]()

        def wanted(tensor: int, start: int, stop: int) -> bool:
            return any(number in self._walks for number in self._meeting(tensor, start, stop))

        def hand(tensor: int, start: int, cells: Cells) -> None:
            at = geometry.tensor_start(tensor) + start
            for number in self._meeting(tensor, start, start + len(cells)):
                walk = self._walks.get(number)
                if walk is not None and walk.cells is not None:
                    group = walk.group
                    first, last = max(at, group.start), min(at + len(cells), group.start + group.cells)
                    held = walk.cells[first - group.start : last - group.start]
                    take(walk, held, first - group.start, cells[first - at : last - at])
                    taken.append(last - first)

        context = self._context
        fetch_cells(context.store, geometry, keyframe, wanted, hand, context.fetch_map)
        if sum(taken) != sum(walk.group.cells for walk in self._walks.values()):
            raise CorruptObject(f"{keyframe.index.key}: the keyframe lacks cells of its layout")

    def _meeting(self, tensor: int, start: int, stop: int) -> range:
        at = self._geometry.tensor_start(tensor)
        return self._geometry.groups.meeting(at + start, at + stop)


def _fill(_: GroupWalk, held: Cells, __: int, cells: Cells) -> None:
    held[:] = cells


def _end_to_end(pieces: list[tuple[int, Delta]], group: Group) -> Delta:
    """Join the deltas of a group's pieces, which come in any order."""
    deltas = [delta for _, delta in sorted(pieces, key=lambda piece: piece[0])]
    index = np.concatenate([np.empty(0, np.uint32), *(delta.index for delta in deltas)])
    distance = np.concatenate([np.empty(0, group.cell_type.dtype), *(delta.distance for delta in deltas)])
    return Delta(index, distance)


def _batches(steps: Sequence[Step]) -> Iterator[Batch]:
    """Cut steps into those whose patches are read side by side; one with a keyframe stands alone."""
    batch: list[Step] = []
    nbytes = 0
    for step in steps:
        alone = step.legs[0].keyframe is not None
        if batch and (alone or len(batch) == _BATCH or nbytes + step.nbytes > _BATCH_BYTES):
            yield tuple(batch)
            batch, nbytes = [], 0
        batch.append(step)
        nbytes += step.nbytes
        if alone:
            yield tuple(batch)
            batch, nbytes = [], 0
    if batch:
        yield tuple(batch)
