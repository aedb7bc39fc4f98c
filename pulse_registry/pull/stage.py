"""Staging: everything about a pull but the change of the live weights.

The legs of a route are fetched, checked, decoded and joined, group by group, each as soon as it is there, into one
change that is verified against the base at hand and against the version's state digest. The live weights are only
read: they may be serving. ``Staged.apply`` then changes them in one pass of idempotent stores.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from pulse_kernels import Cells
from pulse_registry.context import Context
from pulse_registry.errors import CorruptObject, InvalidArgument, LayoutMismatch
from pulse_registry.format.sparse_update import HostUpdate, ModelUpdate, SparseUpdate
from pulse_registry.pull.destination import Destination, HostDestination, Source
from pulse_registry.pull.fetch import begin_patches
from pulse_registry.pull.keyframe_cells import KeyframeCells
from pulse_registry.pull.replica import UndoStep
from pulse_registry.pull.route import Leg, Route
from pulse_registry.pull.ties import first_torn
from pulse_registry.timeline import Timeline
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.nonfinite import first_in_groups

_DENSE_SHARE = 0.25
"""Of a keyframe, a change of more cells than this share is applied as a copy: its list would take too much memory."""


@dataclass(slots=True)
class StagedCells:
    """A verified way from what the target's weights hold to a version.

    Attributes:
        changes: relative to the weights, or to ``keyframe`` where that is set.
        keyframe: all cells are copied from here first; None: ``changes`` alone lead to the version.
        digest: the version's.
        whole: whether all cells are replaced.
    """

    changes: ModelUpdate
    keyframe: KeyframeCells | None
    digest: Digest
    whole: bool = False

    def store_into(self, context: Context, target: Destination) -> None:
        """Write the version's cells; safe to do again after it was cut off."""
        if self.keyframe is None:
            target.apply(self.changes)
            return
        source, on_top = self.keyframe, _by_group(self.changes)

        def cells_of(group: Group) -> Cells:
            cells = source.weights.copy_of(group)
            source.release(group)
            if group.number in on_top:
                on_top[group.number].apply_to(context.backend, cells)
            return cells

        target.fill(cells_of, context.map_)

    def not_finite(self, context: Context, target: Destination) -> int | None:
        """Return the flat index of a cell to be stored that is NaN or infinite, None if there is none."""
        if not self.whole:
            return self.changes.not_finite()
        keyframe, on_top = self.keyframe, _by_group(self.changes)

        def cells_of(group: Group) -> Cells:
            cells = target.read(group) if keyframe is None else keyframe.weights.copy_of(group)
            if keyframe is not None:
                keyframe.release(group)
            if group.number in on_top:
                on_top[group.number].apply_to(context.backend, cells)
            return cells

        return first_in_groups(target.geometry, cells_of, context.map_)

    def close(self) -> None:
        """Give back files and memory."""
        if self.keyframe is not None:
            self.keyframe.close()
        self.changes = HostUpdate()


def stage_cells(
    context: Context,
    target: Destination,
    route: Route,
    *,
    base_digest: Digest | None,
    target_digest: Digest,
    timeline: Timeline,
    undo: Sequence[UndoStep] = (),
    new: bool = False,
) -> StagedCells:
    """Prepare the way along ``route``; the target's weights are not changed, whatever happens.

    Args:
        context: store, backend, threads.
        target: the live weights, holding version ``route.base`` if that is one.
        route: from ``plan``.
        base_digest: of the version that the weights hold; None where that is not known.
        target_digest: of version ``route.target``, as committed.
        timeline: notes ``fetch``, ``decode`` and ``verify``.
        undo: the steps that the route's undo legs take back, newest first.
        new: the weights hold nothing and nobody has seen them: they may be given other memory.

    Raises:
        BaseMismatch: the weights are not the version that they were taken for.
        CorruptObject: stored bytes are not what was committed.
        NotFound, UnsupportedFormat, StoreUnavailable: as the store and the formats.
    """
    geometry, legs = target.geometry, route.legs
    keyframe: KeyframeCells | None = None
    with timeline.during("fetch"):
        if legs and legs[0].keyframe is not None:
            in_memory = new and isinstance(target, HostDestination)
            keyframe = KeyframeCells.fetch(
                context.store,
                geometry,
                legs[0].keyframe,
                context.fetch_map,
                context.downloads,
                in_memory=in_memory,
            )
            timeline.note("fetch", timeline.clock(), nbytes=legs[0].nbytes)
            legs = legs[1:]
    try:
        sources = _sources(context, geometry, legs, undo, timeline)
        base = target if keyframe is None else HostDestination(keyframe.weights, context.backend, context.pool)
        timeline.note("decode", timeline.clock())  # a phase of every pull, even of one that has nothing to decode
        changes, delta = base.join(sources, context.fetchers, timeline)
        with timeline.during("verify"):
            return _verify(context, target, keyframe, changes, delta, base_digest, target_digest, route)
    except BaseException:
        if keyframe is not None:
            keyframe.close()
        raise


def _sources(
    context: Context, geometry: Geometry, legs: Sequence[Leg], undo: Sequence[UndoStep], timeline: Timeline
) -> list[Source]:
    """Return what the legs after a keyframe change, patches with no more than their beginnings."""
    refs = [leg.patch for leg in legs if leg.patch is not None]
    began = timeline.clock()
    found = begin_patches(context.store, geometry, refs, context.fetch_map)
    timeline.note("fetch", began, nbytes=sum(patch.begun for patch in found))
    patches = iter(found)
    steps = iter(undo)
    return [Source(leg, step=next(steps).changes) if leg.patch is None else Source(leg, next(patches)) for leg in legs]


def _verify(
    context: Context,
    target: Destination,
    keyframe: KeyframeCells | None,
    changes: ModelUpdate,
    delta: Digest,
    base_digest: Digest | None,
    target_digest: Digest,
    route: Route,
) -> StagedCells:
    """Compare the state digest that the way leads to with the committed one."""
    digest = delta
    if keyframe is None:
        if base_digest is None:
            raise InvalidArgument("a route without a keyframe needs the base's digest")
        digest += base_digest
        staged = StagedCells(changes, None, digest)
    elif keyframe.in_memory:
        digest += keyframe.weights.digest(context.backend, context.map_)
        staged = StagedCells(changes, None, digest, whole=True)
    else:
        whole, sparse = _against_keyframe(context, target, keyframe, changes, known=base_digest is not None)
        digest += whole
        staged = StagedCells(changes, keyframe, digest, whole=True)
        if sparse is not None:
            staged = StagedCells(sparse, None, digest)
    if digest != target_digest:
        raise CorruptObject(
            f"version {route.target}: the route leads to state digest {digest.hex()}, "
            f"{target_digest.hex()} was committed; nothing was changed"
        )
    if isinstance(target, HostDestination) and target.weights.tied:
        _check_tied(target.weights, staged, route.target)
    if keyframe is not None and keyframe.in_memory and isinstance(target, HostDestination):
        target.weights.adopt(keyframe.weights)
    if keyframe is not None and staged.keyframe is None:
        keyframe.close()
    return staged


def _check_tied(weights: Weights, staged: StagedCells, version: int) -> None:
    """Raise LayoutMismatch if tensors that are one in the model would have to become two."""
    if not isinstance(staged.changes, HostUpdate):
        return
    keyframe = staged.keyframe
    torn = first_torn(weights.tied, staged.changes, None if keyframe is None else keyframe.weights)
    if keyframe is not None:
        for group in weights.geometry.groups:
            keyframe.release(group)
    if torn is not None:
        one, other = (weights.geometry.layout.tensors[number].name for number in torn)
        raise LayoutMismatch(
            f"tensors {one!r} and {other!r} are one in the model, and differ in version {version}: give each memory of "
            "its own. Nothing was changed"
        )


def _against_keyframe(
    context: Context, target: Destination, keyframe: KeyframeCells, changes: ModelUpdate, *, known: bool
) -> tuple[Digest, HostUpdate | None]:
    """Return the keyframe's digest and, where little differs, the change from the live weights to the version.

    Such a change makes a short pause and can be undone; it needs no belief in what the weights hold.
    """
    geometry, backend, on_top = target.geometry, context.backend, _by_group(changes)
    listed = known and isinstance(target, HostDestination) and target.weights.plain
    left = _Budget(int(_DENSE_SHARE * geometry.cells) if listed else 0)

    def look(group: Group) -> tuple[Digest, SparseUpdate | None]:
        digest = keyframe.weights.digest_of(backend, group)
        change = None
        if left.any:
            cells = keyframe.weights.copy_of(group)
            if group.number in on_top:
                on_top[group.number].apply_to(backend, cells)
            index, old, new = backend.diff(cells, target.read(group))
            change = SparseUpdate(group, index, old, new) if left.take(len(index)) else None
        keyframe.release(group)
        return digest, change

    looked = list(context.map_(look, geometry.groups))
    total = sum((digest for digest, _ in looked), Digest())
    sparse = tuple(change for _, change in looked if change is not None and len(change.index))
    return total, HostUpdate(sparse) if left.any else None


def _by_group(changes: ModelUpdate) -> dict[int, SparseUpdate]:
    """Return the changes on top of a keyframe, which is in host memory, and so are they."""
    return {change.group.number: change for change in changes.groups} if isinstance(changes, HostUpdate) else {}


class _Budget:
    """Counts down from many threads; once overdrawn there is none left."""

    def __init__(self, amount: int) -> None:
        self._lock = threading.Lock()
        self._amount = amount

    @property
    def any(self) -> bool:
        return self._amount > 0

    def take(self, amount: int) -> bool:
        with self._lock:
            self._amount -= amount
        return self.any
