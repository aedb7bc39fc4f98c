"""Staging: everything about a pull but the change of the live weights.

The legs of a route are fetched in parallel, checked, decoded and joined, group by group, into one change that is
verified against the base at hand and against the target's state digest. The live weights are only read: they may be
serving. ``Staged.apply`` then changes them in one pass of idempotent stores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pulse_kernels import Backend
from pulse_registry.chain import Link, WrongBase, follow
from pulse_registry.change import Change
from pulse_registry.digest import Digest
from pulse_registry.errors import BaseMismatch, CorruptObject, InvalidArgument
from pulse_registry.fetch import Map, fetch_layout, fetch_patches
from pulse_registry.geometry import Geometry, Group
from pulse_registry.held import Step
from pulse_registry.keyframe_cells import KeyframeCells
from pulse_registry.patch import Patch
from pulse_registry.route import Leg, Route
from pulse_registry.store import Store
from pulse_registry.weights import Weights

_DENSE_SHARE = 0.25
"""Of a keyframe, a change of more cells than this share is applied as a copy: its list would take too much memory."""


@dataclass(frozen=True, slots=True)
class Staging:
    """What staging works with: made once, shared by all pushes and pulls of a registry.

    Attributes:
        store: scoped to the run.
        backend: computes.
        map_: an executor's map, with a thread for each core.
        fetch_map: another's, for what waits for the store.
        spool: folder for keyframes on their way; None for the system's temporary folder.
    """

    store: Store
    backend: Backend
    map_: Map
    fetch_map: Map
    spool: Path | None
    _geometries: dict[str, Geometry] = field(default_factory=dict)

    def geometry(self, layout_id: str) -> Geometry:
        """Return a stored layout's geometry; fetched once."""
        if layout_id not in self._geometries:
            self._geometries[layout_id] = Geometry(fetch_layout(self.store, layout_id))
        return self._geometries[layout_id]


@dataclass(slots=True)
class StagedCells:
    """A verified way from what the weights hold to the target.

    Attributes:
        changes: one a changed group, in group order, relative to the weights, or to ``keyframe`` where that is set.
        keyframe: all cells are copied from here first; None: ``changes`` alone lead to the target.
        digest: the target's.
        whole: whether all cells are replaced.
        phases: seconds of ``fetch``, ``decode`` and ``verify``.
    """

    changes: Sequence[Change]
    keyframe: KeyframeCells | None
    digest: Digest
    whole: bool = False
    phases: dict[str, float] = field(default_factory=dict)

    def store_into(self, staging: Staging, weights: Weights) -> None:
        """Write the target's cells; safe to do again after it was cut off."""
        if self.keyframe is None:
            list(staging.map_(lambda change: change.apply(staging.backend, weights), self.changes))
            return
        source, changes = self.keyframe, {change.group.number: change for change in self.changes}

        def copy(group: Group) -> None:
            weights.fill(group, source.weights.copy_of(group))
            source.release(group)
            if group.number in changes:
                changes[group.number].apply(staging.backend, weights)

        list(staging.map_(copy, weights.geometry.groups))

    def close(self) -> None:
        """Give back files and memory."""
        if self.keyframe is not None:
            self.keyframe.close()
        self.changes = ()


def stage_cells(
    staging: Staging,
    weights: Weights,
    route: Route,
    *,
    base_digest: Digest | None,
    target_digest: Digest,
    undo: Sequence[Step] = (),
    new: bool = False,
) -> StagedCells:
    """Prepare the way along ``route``; the weights are not changed, whatever happens.

    Args:
        staging: store, backend, threads.
        weights: the live weights, holding version ``route.base`` if that is one.
        route: from ``plan``.
        base_digest: of the version that the weights hold; None where that is not known.
        target_digest: of version ``route.target``, as committed.
        undo: the steps that the route's undo legs take back, newest first.
        new: the weights hold nothing and nobody has seen them: they may be given other memory.

    Raises:
        BaseMismatch: the weights are not the version that they were taken for.
        CorruptObject: stored bytes are not what was committed.
        NotFound, UnsupportedFormat, StoreUnavailable: as the store and the formats.
    """
    phases: dict[str, float] = {}
    began = time.perf_counter()
    geometry = weights.geometry
    keyframe: KeyframeCells | None = None
    legs = route.legs
    if legs and legs[0].keyframe is not None:
        keyframe = KeyframeCells.fetch(
            staging.store, geometry, legs[0].keyframe, staging.fetch_map, staging.spool, in_memory=new
        )
        legs = legs[1:]
    try:
        refs = [leg.patch for leg in legs if leg.patch is not None]
        fetched = fetch_patches(staging.store, geometry, refs, staging.fetch_map)
        patches = {patch.ref.object.key: patch for patch in fetched}
        phases["fetch"] = time.perf_counter() - began
        base = keyframe.weights if keyframe is not None else weights
        joined = _join_legs(staging, geometry, base, legs, patches, undo)
        phases["decode"] = time.perf_counter() - began - phases["fetch"]
        staged = _verify(staging, weights, keyframe, joined, base_digest, target_digest, route)
        phases["verify"] = time.perf_counter() - began - phases["fetch"] - phases["decode"]
        staged.phases = phases
    except BaseException:
        if keyframe is not None:
            keyframe.close()
        raise
    return staged


def _join_legs(
    staging: Staging,
    geometry: Geometry,
    base: Weights,
    legs: Sequence[Leg],
    patches: dict[str, Patch],
    undo: Sequence[Step],
) -> list[tuple[Change, Digest]]:
    """Return, for each changed group, its change against ``base`` and what that adds to the state digest."""
    steps = iter(undo)
    sources: list[tuple[Leg, Patch | dict[int, Change]]] = []
    for leg in legs:
        if leg.patch is not None:
            sources.append((leg, patches[leg.patch.object.key]))
        else:
            sources.append((leg, {change.group.number: change for change in next(steps).changes}))
    touched = sorted({n for _, s in sources for n in (s.entries if isinstance(s, Patch) else s)})
    return list(staging.map_(lambda n: _join_group(staging.backend, geometry.groups[n], base, sources), touched))


def _join_group(
    backend: Backend, group: Group, base: Weights, sources: Sequence[tuple[Leg, Patch | dict[int, Change]]]
) -> tuple[Change, Digest]:
    links = [link for leg, source in sources if (link := _link(backend, group, leg, source)) is not None]
    try:
        change = follow(backend, group, base, links)
    except WrongBase:
        names = ", ".join(repr(base.geometry.layout.tensors[span.tensor].name) for span in group.spans[:3])
        raise BaseMismatch(
            f"the weights are not version {sources[0][0].base}: cells of group {group.number} ({names}"
            f"{', ...' if len(group.spans) > 3 else ''}) differ from what the patches start from. Nothing was "
            "changed; pull into them with fresh=True to replace them whole"
        ) from None
    return change, sum((link.after - link.before for link in links), Digest())


def _link(backend: Backend, group: Group, leg: Leg, source: Patch | dict[int, Change]) -> Link | None:
    """Return what a leg changes of a group; None where that is nothing."""
    if not isinstance(source, Patch):
        if (change := source.get(group.number)) is None:
            return None
        old, new = change.sums(backend)
        return Link(lambda _: -change.delta(backend), False, new, old)
    if (entry := source.entries.get(group.number)) is None:
        return None
    needs_base = entry.coder == "class"
    if leg.kind == "inverse":
        return Link(lambda base: -source.decode(backend, group, base), needs_base, entry.new_sum, entry.old_sum)
    return Link(lambda base: source.decode(backend, group, base), needs_base, entry.old_sum, entry.new_sum)


def _verify(
    staging: Staging,
    weights: Weights,
    keyframe: KeyframeCells | None,
    joined: Sequence[tuple[Change, Digest]],
    base_digest: Digest | None,
    target_digest: Digest,
    route: Route,
) -> StagedCells:
    changes = [change for change, _ in joined]
    digest = sum((delta for _, delta in joined), Digest())
    if keyframe is None:
        if base_digest is None:
            raise InvalidArgument("a route without a keyframe needs the base's digest")
        digest += base_digest
        staged = StagedCells(changes, None, digest)
    elif keyframe.in_memory:
        digest += keyframe.weights.digest(staging.backend, staging.map_)
        staged = StagedCells(changes, None, digest, whole=True)
    else:
        whole, sparse = _against_keyframe(staging, weights, keyframe, changes, known=base_digest is not None)
        digest += whole
        staged = StagedCells(changes, keyframe, digest, whole=True)
        if sparse is not None:
            staged = StagedCells(sparse, None, digest)
    if digest != target_digest:
        raise CorruptObject(
            f"version {route.target}: the route leads to state digest {digest.hex()}, "
            f"{target_digest.hex()} was committed; nothing was changed"
        )
    if keyframe is not None and keyframe.in_memory:
        weights.adopt(keyframe.weights)
    if keyframe is not None and staged.keyframe is None:
        keyframe.close()
    return staged


def _against_keyframe(
    staging: Staging, weights: Weights, keyframe: KeyframeCells, changes: Sequence[Change], *, known: bool
) -> tuple[Digest, list[Change] | None]:
    """Return the keyframe's digest and, where little differs, the change from the live weights to the target.

    Such a change makes a short pause and can be undone; it needs no belief in what the weights hold.
    """
    geometry, backend = weights.geometry, staging.backend
    on_top = {change.group.number: change for change in changes}
    budget = int(_DENSE_SHARE * geometry.cells) if known else 0
    left = _Budget(budget)

    def look(group: Group) -> tuple[Digest, Change | None]:
        digest = keyframe.weights.digest_of(backend, group)
        change = None
        if left.any:
            cells = keyframe.weights.copy_of(group)
            if group.number in on_top:
                on_top[group.number].apply_to(backend, cells)
            index, old, new = backend.diff(cells, weights.copy_of(group))
            change = Change(group, index, old, new) if left.take(len(index)) else None
        keyframe.release(group)
        return digest, change

    looked = list(staging.map_(look, geometry.groups))
    total = sum((digest for digest, _ in looked), Digest())
    return total, [change for _, change in looked if change is not None and len(change.index)] if left.any else None


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
