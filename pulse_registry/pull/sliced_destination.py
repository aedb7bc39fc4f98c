"""Sliced destination: the slices of a rank as what a pull changes.

What patches say counts in the groups of the whole layout: of each that meets a slice, the changes of cells that are
held are met with the cells, wherever these live, and become an update of the local layout, which an ordinary
destination applies. Other groups are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import numpy as np

from pulse_kernels import Backend, Cells
from pulse_registry.errors import BaseMismatch
from pulse_registry.format.delta_step import DeltaStep, WrongBase, join_steps, patch_step
from pulse_registry.format.sparse_update import HostUpdate, ModelUpdate, SparseUpdate
from pulse_registry.pull.destination import Destination, HostDestination, Source, wrong_base
from pulse_registry.pull.group_stream import arriving, in_pool
from pulse_registry.pull.sliced_cells import SlicedCells
from pulse_registry.pull.sliced_update import by_group, of_tensors, to_local, to_whole, united
from pulse_registry.timeline import DecodeTimer, Timeline
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_access import Where
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.slice_map import HeldSlice, Piece, SliceMap

_CHUNK = 4 << 20
"""Cells that are read at a time."""
_LARGE_REST = 0.25
"""Of slices that are not counted and are more than this share of the cells, all cells are passed over: it is simpler
where they are, and on a GPU nothing is downloaded for it."""


@dataclass(frozen=True, slots=True)
class SliceDigests:
    """Digests of the cells that slices hold.

    Attributes:
        local: of the local layout: tells whether the cells are still what they were.
        share: what they add to the state digest of the whole layout.
        rest: of the local layout, in the slices that the share does not count.
        speaks: numbers of the slices that the share counts; None: all.
    """

    local: Digest
    share: Digest
    rest: Digest = field(default_factory=Digest)
    speaks: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class BaseSums:
    """Sums of h over the cells that a patch changes, as they were before it.

    Attributes:
        found: over those of the slices that count in this rank's share, as they are here.
        committed: over all of them, as its directory says: what all ranks together must have found.
    """

    found: Digest
    committed: Digest


class SlicedDestination:
    """Slices of a layout's tensors; see ``Destination``.

    Attributes:
        inner: the same cells, as those of the local layout.
        slices: where they lie.
        speaks: numbers of the slices that count in their share; None: all.
        known: digests of the cells as they were last written; None: they were just checked.
        together: whether all ranks add up what they find, so that cells that count in a share need not be passed over.
        base_sums: what is to be added up: where all that changes is a patch.
        left_open: whether cells were left to this sum.
    """

    def __init__(
        self,
        inner: Destination,
        slices: SliceMap,
        backend: Backend,
        pool: Executor,
        speaks: frozenset[int] | None = None,
    ) -> None:
        self.geometry: Geometry = slices.local
        self.stored: Geometry = slices.geometry
        self.inner, self.slices, self.speaks = inner, slices, speaks
        self.known: SliceDigests | None = None
        self.together = self.left_open = False
        self.base_sums: BaseSums | None = None
        self._backend, self._pool = backend, pool
        self._held = SlicedCells(slices, inner.cells)
        self._joined: tuple[ModelUpdate, Digest] | None = None

    def join(self, sources: Sequence[Source], fetchers: Executor, timeline: Timeline) -> tuple[ModelUpdate, Digest]:
        """Decode and join what changes of the cells that are held; of other groups, only the directory is read.

        Raises:
            BaseMismatch: a group that is held whole does not fit the committed sums of its changed cells; or, where one
                is held in part, and nobody adds up shares, the cells of the slices are not those last written.
        """
        steps = [self._by_group(source) for source in sources]
        touched = sorted({number for by_group in steps for number in by_group})

        def join_group(number: int) -> tuple[list[SparseUpdate], Digest, Digest]:
            began, decoding = timeline.clock(), DecodeTimer(timeline)
            links = [by_group[number](decoding) for by_group in steps if number in by_group]
            change = self._follow(self.stored.groups[number], sources[0].leg.base, links)
            pieces = list(self._held.pieces(change.group, change.index))
            found = to_local(self.slices, change, pieces)
            self._held.forget(change.group)
            if weights is not None and not all(weights.exact_at(part.group, part.index) for part in found):
                raise wrong_base(self.stored, change.group, sources[0].leg.base)
            before, after = change.sums(self._backend)
            counted = self._counted(change, pieces) if one_patch and not every else before
            timeline.note("verify", began, busy=timeline.clock() - began - decoding.seconds)
            return found, after - before, counted

        weights, every = host_weights(self.inner), not self._rest
        one_patch = self.together and len(sources) == 1 and sources[0].step is None
        patches = [source.patch for source in sources if source.patch is not None]
        arrived = arriving(patches, touched, fetchers, timeline)
        joined = [join_group(n) for n in arrived] if len(touched) == 1 else in_pool(self._pool, join_group, arrived)
        update = HostUpdate(by_group(change for changes, _, _ in joined for change in changes))
        if one_patch:
            self.base_sums = BaseSums(sum((found for *_, found in joined), Digest()), self._before(sources[0]))
        if self.known is not None and not all(self.slices.holds(self.stored.groups[number]) for number in touched):
            with timeline.during("verify"):
                self._check_base(self.known, sources[0].leg.base)
        changes = self.inner.from_host(update)
        self._joined = changes, sum((moved for _, moved, _ in joined), Digest())
        return changes, sum((_delta(source) for source in sources), Digest())

    def check(self, version: int | None) -> None:
        """Compare all cells with what was last written.

        Raises:
            BaseMismatch: they are others.
        """
        if self.known is not None and self.inner.digest() != self.known.local:
            raise _changed(version)

    def _check_base(self, known: SliceDigests, version: int | None) -> None:
        """Compare the cells that neither committed sums nor those of all ranks tell of with what was last written."""
        rest = self._rest
        if self.base_sums is None or sum(one.box.cells for one in rest) > _LARGE_REST * self.geometry.cells:
            self.check(version)
            return
        self.left_open = True
        if rest and self._digest_of(rest) != known.rest:
            raise _changed(version)

    def _counted(self, change: SparseUpdate, pieces: Iterable[Piece]) -> Digest:
        """Return the sum of h over the old cells of the slices that count in the share."""
        rest = {one.number for one in self._rest}
        total = Digest()
        for one, chosen, _ in pieces:
            if one.number not in rest:
                index, old = change.index[chosen], change.old[chosen]
                total += Digest(*self._backend.digest_sparse(index, old, change.group.start))
        return total

    @property
    def _rest(self) -> list[HeldSlice]:
        """The slices that the share does not count: other ranks hold them too."""
        return [] if self.speaks is None else [one for one in self.slices.slices if one.number not in self.speaks]

    def _digest_of(self, some: Iterable[HeldSlice]) -> Digest:
        """Return what some slices add to the digest of the local layout."""
        total = Digest()
        for one in some:
            start = self.geometry.tensor_start(one.number)
            for first in range(0, one.box.cells, _CHUNK):
                cells = self.inner.cells(one.number, slice(first, min(first + _CHUNK, one.box.cells)))
                total += Digest(*self._backend.digest(np.ascontiguousarray(cells), start + first))
        return total

    def moved(self, known: SliceDigests, update: ModelUpdate) -> SliceDigests:
        """Return what the digests become once an update is applied."""
        local, share, rest, backend = known.local, known.share, known.rest, self._backend
        others = {one.number for one in self._rest}
        every = self.speaks is None or len(self.speaks) == len(self.slices.slices)
        counted = every and self._joined is not None and self._joined[0] is update  # it was met with the cells here
        if counted and self._joined is not None:
            share += self._joined[1]
        for change in self.inner.to_host(update).groups:
            before, after = change.sums(backend)
            local += after - before
            for part in () if counted else to_whole(self.slices, change, self.speaks):
                before, after = part.sums(backend)
                share += after - before
            for part in of_tensors(change, others) if others else ():
                before, after = part.sums(backend)
                rest += after - before
        return SliceDigests(local, share, rest, self.speaks)

    def digests(self, map_: Callable[..., Iterable[Digest]]) -> SliceDigests:
        """Return the digests of the cells by a full pass over each."""
        groups = [self.stored.groups[number] for number in self.slices.groups]
        share = sum(map_(lambda group: self._held.share(self._backend, group, self.speaks), groups), Digest())
        return SliceDigests(self.inner.digest(), share, self._digest_of(self._rest), self.speaks)

    def trust(self, known: SliceDigests | None, version: int | None, map_: Callable[..., Iterable[Digest]]) -> None:
        """Take the cells as those that have these digests; a share that is missing, or counts others, is counted anew.

        Raises:
            BaseMismatch: it was to be counted anew, and the cells are others.
        """
        if known is None and version is not None:  # they were shown to be the version, all of it, without a share
            known = self.digests(map_)
        self.known = known
        if known is not None and known.speaks != self.speaks:
            found = self.digests(map_)
            if found.local != known.local:
                raise _changed(version)
            self.known = found

    def apply(self, changes: ModelUpdate) -> None:
        """Store the new cells."""
        self.inner.apply(changes)

    def undo(self, changes: ModelUpdate) -> None:
        """Store the old cells."""
        self.inner.undo(changes)

    def read(self, group: Group) -> Cells:
        """Return a copy of a local group's cells."""
        return self.inner.read(group)

    def filling(self) -> AbstractContextManager[Callable[[Group, Cells], None]]:
        """Return a context in which all cells are stored, each local group's."""
        return self.inner.filling()

    def digest(self) -> Digest:
        """Return the digest of the local layout by a full pass."""
        return self.inner.digest()

    def cells(self, tensor: int, where: Where) -> Cells:
        """Return some cells of a slice."""
        return self.inner.cells(tensor, where)

    def from_host(self, changes: HostUpdate) -> ModelUpdate:
        """Return an update that was made in host memory as one that ``apply`` takes."""
        return self.inner.from_host(changes)

    def to_host(self, changes: ModelUpdate) -> HostUpdate:
        """Return an update in host memory."""
        return self.inner.to_host(changes)

    def _by_group(self, source: Source) -> Mapping[int, Callable[[DecodeTimer], DeltaStep]]:
        """Return what makes the step of each group that a source changes and slices hold cells of."""
        if source.patch is not None:
            return {
                number: self._patched(source, number) for number in self.slices.groups if number in source.patch.entries
            }
        if source.given is not None:
            held = set(self.slices.groups)
            return {one.group.number: self._decoded(one) for one in source.given.groups if one.group.number in held}
        if source.step is None:
            return {}
        found: dict[int, list[SparseUpdate]] = {}
        for change in self.inner.to_host(source.step).groups:
            for part in to_whole(self.slices, change):
                found.setdefault(part.group.number, []).append(part)
        return {number: self._taken_back(parts) for number, parts in found.items()}

    def _patched(self, source: Source, number: int) -> Callable[[DecodeTimer], DeltaStep]:
        group, held = self.stored.groups[number], self._held

        def made(decoding: DecodeTimer) -> DeltaStep:
            inverse, patch = source.leg.kind == "inverse", source.patch
            step = patch_step(self._backend, group, patch, inverse=inverse, decoding=decoding.of)  # type: ignore[arg-type]
            if self.slices.holds(group):
                return step
            whole = step.decode
            return replace(
                step, decode=lambda base: held.restrict(group, whole(base)), in_part=True, move=None, look=None
            )

        return made

    def _decoded(self, change: SparseUpdate) -> Callable[[DecodeTimer], DeltaStep]:
        group, held = change.group, self._held

        def made(_: DecodeTimer) -> DeltaStep:
            in_part = not self.slices.holds(group)
            return DeltaStep(
                lambda _: held.restrict(group, change.delta(self._backend)),
                False,
                len(change.index),
                *change.sums(self._backend),
                in_part,
            )

        return made

    def _before(self, source: Source) -> Digest:
        """Return the sum of h over all cells that a patch, or what is given, changes, as they were, in all groups."""
        if source.given is not None:
            return sum((change.sums(self._backend)[0] for change in source.given.groups), Digest())
        if source.patch is None:
            raise TypeError("a step in memory has no directory")
        old, new = source.patch.entries.sums
        return new if source.leg.kind == "inverse" else old

    def _taken_back(self, parts: Sequence[SparseUpdate]) -> Callable[[DecodeTimer], DeltaStep]:
        change = united(parts)
        before, after = change.sums(self._backend)
        return lambda _: DeltaStep(lambda _: -change.delta(self._backend), False, len(change.index), after, before)

    def _follow(self, group: Group, base: int | None, links: Sequence[DeltaStep]) -> SparseUpdate:
        try:
            return join_steps(self._backend, group, self._held, links)
        except WrongBase:
            raise wrong_base(self.stored, group, base) from None


def _changed(version: int | None) -> BaseMismatch:
    return BaseMismatch(
        f"the slices are not those of version {version}: something else has changed them since they were pulled. "
        "Nothing was changed; pull into them with replace=True to replace them whole"
    )


def host_weights(destination: Destination) -> Weights | None:
    """Return the weights of a destination in host memory, of the local layout where they are slices; else None."""
    inner = destination.inner if isinstance(destination, SlicedDestination) else destination
    return inner.weights if isinstance(inner, HostDestination) else None


def _delta(source: Source) -> Digest:
    """Return what a leg adds to the state digest, in all groups."""
    if source.patch is None:
        return source.delta
    total = source.patch.entries.delta
    return Digest() - total if source.leg.kind == "inverse" else total
