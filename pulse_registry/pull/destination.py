"""Destination of a pull: weights that are read while an update of them is staged, and changed in one burst.

``Destination`` is what staging needs of them, wherever they live; ``HostDestination`` are weights in host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from pulse_kernels import Backend, Cells
from pulse_registry.errors import BaseMismatch
from pulse_registry.format.delta_step import DeltaStep, WrongBase, join_steps, patch_step
from pulse_registry.format.directory import Directory
from pulse_registry.format.patch import Patch
from pulse_registry.format.sparse_update import HostUpdate, ModelUpdate, SparseUpdate
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.pull.group_stream import arriving, in_pool
from pulse_registry.pull.route import Leg
from pulse_registry.timeline import DecodeTimer, Timeline
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_access import Where
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest

_ByGroup: TypeAlias = Directory | Mapping[int, SparseUpdate]
"""What a source changes, by group number."""


@dataclass(frozen=True, slots=True)
class Source:
    """A leg of a route and what it changes: a patch on its way, or a step in memory.

    Attributes:
        leg: of the route.
        patch: of the leg, with its head at hand.
        step: what is to be taken back.
        given: changes of the whole layout, decoded elsewhere, of which slices take their part.
        delta: what the leg adds to the state digest, as its versions were committed.
    """

    leg: Leg
    patch: Patch | None = None
    step: ModelUpdate | None = None
    given: HostUpdate | None = None
    delta: Digest = field(default_factory=Digest)


class Destination(Protocol):
    """Weights of one layout, or the slices of its tensors that are here.

    ``join`` and ``read`` change nothing. ``apply``, ``undo`` and ``filling`` store final cells, in place: to do one
    again does no harm, and what was cut off is mended by it.

    Attributes:
        geometry: of the cells that are here: what updates and ``read`` count in.
        stored: of the version's layout, which patches and keyframes count in; the same, but for slices.
    """

    geometry: Geometry
    stored: Geometry

    def join(self, sources: Sequence[Source], fetchers: Executor, timeline: Timeline) -> tuple[ModelUpdate, Digest]:
        """Decode all sources, in this order, and join them to one change of these weights, checked at each cell.

        Args:
            sources: a chain; its steps are changes that this kind of target made.
            fetchers: threads that wait for the store, for what is missing of the patches.
            timeline: notes ``fetch``, ``decode`` and ``verify``.

        Returns:
            The change, and what it adds to the state digest.

        Raises:
            BaseMismatch: the cells are not those that a source starts from.
            CorruptObject, NotFound, StoreUnavailable: as the patches.
        """
        ...

    def apply(self, changes: ModelUpdate) -> None:
        """Store the new cells."""
        ...

    def undo(self, changes: ModelUpdate) -> None:
        """Store the old cells."""
        ...

    def read(self, group: Group) -> Cells:
        """Return a copy of a group's cells, in host memory. Thread-safe."""
        ...

    def filling(self) -> AbstractContextManager[Callable[[Group, Cells], None]]:
        """Return a context in which all cells are stored, each group's from host memory, by calls of any threads."""
        ...

    def digest(self) -> Digest:
        """Return the state digest of the cells that are here, by a full pass."""
        ...

    def cells(self, tensor: int, where: Where) -> Cells:
        """Return some cells of a tensor, in host memory, only to be read. Thread-safe."""
        ...

    def from_host(self, changes: HostUpdate) -> ModelUpdate:
        """Return an update that was made in host memory as one that ``apply`` takes."""
        ...

    def to_host(self, changes: ModelUpdate) -> HostUpdate:
        """Return an update of these weights in host memory."""
        ...


class HostDestination:
    """Weights in host memory, worked on group by group by a pool's threads."""

    def __init__(self, weights: Weights, backend: Backend, pool: Executor) -> None:
        self.geometry = self.stored = weights.geometry
        self.weights = weights
        self._backend = backend
        self._pool = pool

    def join(self, sources: Sequence[Source], fetchers: Executor, timeline: Timeline) -> tuple[HostUpdate, Digest]:
        """Decode and join group by group, each as soon as its bytes are there; takes O(changed) memory."""
        base, found = sources[0].leg.base if sources else None, dict[int, SparseUpdate]()

        def join_group(group: Group, steps: Sequence[DeltaStep]) -> None:
            change = join_steps(self._backend, group, self.weights, steps)
            if not self.weights.exact_at(group, change.index):
                raise WrongBase
            if len(change.index):
                found[group.number] = change

        digest = self.follow(sources, base, fetchers, timeline, join_group)
        return HostUpdate(tuple(change for _, change in sorted(found.items()))), digest

    def follow(
        self,
        sources: Sequence[Source],
        base: int | None,
        fetchers: Executor,
        timeline: Timeline,
        work: Callable[[Group, Sequence[DeltaStep]], None],
    ) -> Digest:
        """Do what sources, in this order, are to do with each group that they change, once its bytes are there.

        Args:
            sources: a chain.
            base: the version that errors call the weights.
            fetchers, timeline: as for ``join``.
            work: is called by threads, with a group and its steps, not decoded yet; may raise WrongBase.

        Returns:
            What the sources add to the state digest.

        Raises:
            BaseMismatch, CorruptObject, NotFound, StoreUnavailable: as ``join``.
        """
        found = [(source, _by_group(source)) for source in sources]
        touched = sorted({number for _, by_group in found for number in by_group})

        def follow_group(number: int) -> Digest:
            began, group, decoding = timeline.clock(), self.geometry.groups[number], DecodeTimer(timeline)
            steps = [self._step(group, source, by_group, decoding) for source, by_group in found if number in by_group]
            try:
                work(group, steps)
            except WrongBase:
                raise wrong_base(self.geometry, group, base) from None
            timeline.note("verify", began, busy=timeline.clock() - began - decoding.seconds)
            return sum((step.after - step.before for step in steps), Digest())

        patches = [source.patch for source in sources if source.patch is not None]
        arrived = arriving(patches, touched, fetchers, timeline)
        # One group is not worth the way to another thread.
        one = len(touched) == 1
        return sum([follow_group(n) for n in arrived] if one else in_pool(self._pool, follow_group, arrived), Digest())

    def apply(self, changes: ModelUpdate) -> None:
        """Store the new cells."""
        list(ParallelMap(self._pool)(lambda change: change.apply(self._backend, self.weights), _groups(changes)))

    def undo(self, changes: ModelUpdate) -> None:
        """Store the old cells."""
        list(ParallelMap(self._pool)(lambda change: change.undo(self._backend, self.weights), _groups(changes)))

    def read(self, group: Group) -> Cells:
        """Return a copy of a group's cells."""
        return self.weights.copy_of(group)

    def filling(self) -> AbstractContextManager[Callable[[Group, Cells], None]]:
        """Return a context in which all cells are stored."""
        return nullcontext(self.weights.fill)

    def digest(self) -> Digest:
        """Return the state digest by a full pass."""
        return self.weights.digest(self._backend, ParallelMap(self._pool))

    def cells(self, tensor: int, where: Where) -> Cells:
        """Return some cells of a tensor: a view of contiguous ones."""
        return self.weights.cells(tensor, where)

    def from_host(self, changes: HostUpdate) -> HostUpdate:
        """Return the update."""
        return changes

    def to_host(self, changes: ModelUpdate) -> HostUpdate:
        """Return the update."""
        return HostUpdate(_groups(changes))

    def _step(self, group: Group, source: Source, by_group: _ByGroup, decoding: DecodeTimer) -> DeltaStep:
        """Return what a source changes of a group, not decoded yet."""
        backend = self._backend
        if not isinstance(by_group, Directory):
            what = by_group[group.number]
            old, new = what.sums(backend)
            return DeltaStep(lambda _: -what.delta(backend), False, len(what.index), new, old)
        inverse = source.leg.kind == "inverse"
        return patch_step(backend, group, source.patch, inverse=inverse, decoding=decoding.of)  # type: ignore[arg-type]


def wrong_base(geometry: Geometry, group: Group, base: int | None) -> BaseMismatch:
    """Return the error that a group's cells are not those of the version that a pull starts from."""
    names = ", ".join(repr(geometry.layout.tensors[span.tensor].name) for span in group.spans[:3])
    return BaseMismatch(
        f"the weights are not version {base}: cells of group {group.number} ({names}"
        f"{', ...' if len(group.spans) > 3 else ''}) differ from what the patches start from. Nothing was "
        "changed; pull into them with replace=True to replace them whole"
    )


def _groups(changes: ModelUpdate) -> tuple[SparseUpdate, ...]:
    if not isinstance(changes, HostUpdate):
        raise TypeError(f"a {type(changes).__name__} can't be applied to weights in host memory")
    return changes.groups


def _by_group(source: Source) -> _ByGroup:
    if source.patch is not None:
        return source.patch.entries
    return {} if source.step is None else {change.group.number: change for change in _groups(source.step)}
