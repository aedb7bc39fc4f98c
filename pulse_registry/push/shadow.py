"""The shadow: the cells that a trainer last published, kept beside its live weights to diff against.

It runs ahead of the log by the pushes that are still on their way: each is kept with its old cells until it is
committed, so that a failure takes them back, the newest first, and the next push carries them again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from pulse_kernels import Backend, Cells, Spans
from pulse_registry.context import Context
from pulse_registry.errors import Conflict
from pulse_registry.format.patch_coding import Coded, CoderChoice, code_change
from pulse_registry.format.sparse_update import HostUpdate, ModelUpdate, SparseUpdate
from pulse_registry.process.parallel import ParallelMap, results
from pulse_registry.pull.destination import Destination, HostDestination
from pulse_registry.timeline import Timeline
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.device import Placement, ShadowPlace
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import View
from pulse_registry.weights.reading import spans_of


class Advance(Protocol):
    """A version that a shadow was moved to, and its patch from the version before, which is being coded."""

    version: int

    @property
    def digest(self) -> Digest:
        """Of the version; a device may still be summing it up, which this waits for."""
        ...

    def coded(self) -> Iterator[Coded]:
        """Yield each group that changed, in group order, as soon as it is coded; may be called once."""
        ...

    def stop(self) -> None:
        """Cancel the coding that has not begun."""
        ...


class Shadow(Protocol):
    """What a trainer last published, in the memory that suits its weights.

    Attributes:
        geometry: of the layout.
        version: the newest version that it holds, committed or on its way.
    """

    geometry: Geometry
    version: int

    @property
    def digest(self) -> Digest:
        """Of the newest version's cells; a device may still be summing them up, which this waits for."""
        ...

    def advance(self, views: Mapping[str, View], coder: CoderChoice | None, timeline: Timeline) -> Advance:
        """Move to the live tensors' cells as the next version; when this returns, they may change again.

        Without a coder nothing is coded: ``listed`` tells what changed.

        Not to be called beside itself or ``revert``. If it raises, the shadow is at the version before.
        """
        ...

    def settle(self, version: int) -> None:
        """Forget how to take a version back: it is committed."""
        ...

    def revert(self, version: int) -> None:
        """Take back ``version`` and all after it."""
        ...

    def changes_of(self, version: int) -> ModelUpdate:
        """Return what ``version``, which is on its way, changed of the one before."""
        ...

    def listed(self, version: int) -> HostUpdate:
        """Return the same in host memory."""
        ...

    def destination(self) -> Destination:
        """Return the cells as what a pull changes; nothing may be on its way, nor the shadow used until ``resume``."""
        ...

    def resume(self, version: int, digest: Digest) -> None:
        """Stand for the version that ``destination`` was brought to."""
        ...

    def cells_at(self, version: int, group: Group) -> Cells:
        """Return a copy of a group's cells as they are in ``version``, which is the newest committed or later."""
        ...

    def digest_at(self, version: int) -> Digest:
        """Return the digest of the cells that ``cells_at`` gives."""
        ...


@dataclass(slots=True)
class HostAdvance:
    """An advance whose groups are coded by a pool's threads."""

    version: int
    digest: Digest
    _coding: list[Future[Coded]]

    def coded(self) -> Iterator[Coded]:
        """Yield each group that changed, in group order, as soon as it is coded; what was yielded is let go of."""
        self._coding.reverse()
        while self._coding:
            yield self._coding.pop().result()

    def stop(self) -> None:
        """Cancel the coding that has not begun."""
        for future in self._coding:
            future.cancel()


@dataclass(slots=True)
class _Front:
    """How far one group has come: the changes of the pushes on their way, oldest first."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    changes: list[tuple[int, SparseUpdate]] = field(default_factory=list)
    torn: bool = False


class HostShadow:
    """A shadow in host memory.

    Groups go ahead one by one, from many threads. What is true of each group whenever its lock is free: its cells are
    those of the last change of its *front*, and storing the old cells of the front's changes, the newest first, makes
    them those of any version back to the newest committed one. Cells and front are changed under that lock alone, so
    that ``lent`` and ``cells_at`` give a version's cells at any moment of an advance. The version and the digest of the
    whole are set when all groups have arrived.
    """

    def __init__(self, weights: Weights, backend: Backend, pool: Executor, version: int, digest: Digest) -> None:
        """Take cells that are those of a committed version, or of one that is about to be."""
        self.geometry: Geometry = weights.geometry
        self.version = version
        self.digest = digest
        self._weights = weights
        self._backend = backend
        self._pool = pool
        self._fronts = [_Front() for _ in self.geometry.groups]
        self._lock = threading.Lock()
        self._pending: list[tuple[int, Digest]] = []  # versions on their way, each with the digest before it

    def destination(self) -> HostDestination:
        """Return the cells as what a pull changes; see ``Shadow.destination``."""
        return HostDestination(self._weights, self._backend, self._pool)

    def resume(self, version: int, digest: Digest) -> None:
        """Stand for the version that ``destination`` was brought to."""
        self.version, self.digest = version, digest

    def advance(self, views: Mapping[str, View], coder: CoderChoice | None, timeline: Timeline) -> HostAdvance:
        """Diff live tensors against the shadow and take them over, group by group: O(model) reads, O(changed) writes.

        A group's coding is queued as soon as it is diffed, behind the diffs of all groups: the trainer waits for those
        alone, and no thread waits for the last of them. Without a coder nothing is coded.
        """
        version, began = self.version + 1, timeline.clock()

        def take(group: Group) -> tuple[Digest, Future[Coded] | None]:
            start = timeline.clock()
            change = self._take(views, version, group)
            busy.append(timeline.clock() - start)
            if change is None:
                return Digest(), None
            old, new = change.sums(self._backend)
            coding = None if coder is None else self._pool.submit(self._code, version, change, coder, timeline)
            return new - old, coding

        busy: list[float] = []
        groups = self.geometry.groups
        try:
            # One group is not worth the way to another thread.
            taken = [take(groups[0])] if len(groups) == 1 else results([self._pool.submit(take, g) for g in groups])
        except BaseException:
            self._take_back(version)
            raise
        digest = self.digest + sum((delta for delta, _ in taken), Digest())
        with self._lock:
            self._pending.append((version, self.digest))
            self.version, self.digest = version, digest
        timeline.note("diff", began, busy=sum(busy), nbytes=self.geometry.nbytes)
        return HostAdvance(version, digest, [future for _, future in taken if future is not None])

    def settle(self, version: int) -> None:
        """Forget how to take a version back: it is committed."""
        with self._lock:
            self._pending = [entry for entry in self._pending if entry[0] > version]
        for front in self._fronts:
            if front.changes:
                with front.lock:
                    front.changes = [entry for entry in front.changes if entry[0] > version]

    def revert(self, version: int) -> None:
        """Take back ``version`` and all after it."""
        self._take_back(version)
        with self._lock:
            while self._pending and self._pending[-1][0] >= version:
                number, self.digest = self._pending.pop()
                self.version = number - 1

    def changes_of(self, version: int) -> HostUpdate:
        """Return what ``version``, which is on its way, changed of the one before."""
        return HostUpdate(
            tuple(change for front in self._fronts for number, change in front.changes if number == version)
        )

    def listed(self, version: int) -> HostUpdate:
        """Return what ``version``, which is on its way, changed of the one before."""
        return self.changes_of(version)

    @contextmanager
    def lent(self, version: int, group: Group) -> Iterator[Spans]:
        """Lend a group's cells in place as they are in ``version``, only to be read; others wait for them meanwhile.

        O(changed) writes, where a copy would take the group's size: what came later is taken back, and stored again.
        """
        front = self._fronts[group.number]
        with front.lock:
            later = self._later(front, version, group)
            for change in reversed(later):
                change.undo(self._backend, self._weights)
            try:
                yield self._weights.laid_out(group)
            finally:
                for change in later:
                    change.apply(self._backend, self._weights)

    def cells_at(self, version: int, group: Group) -> Cells:
        """Return a copy of a group's cells as they are in ``version``, which is the newest committed or later."""
        front = self._fronts[group.number]
        with front.lock:
            later = self._later(front, version, group)
            cells = self._weights.copy_of(group)
        for change in reversed(later):
            change.undo_in(self._backend, cells)
        return cells

    def digest_at(self, version: int) -> Digest:
        """Return the digest of the cells that ``cells_at`` gives."""
        with self._lock:
            return next((before for number, before in self._pending if number > version), self.digest)

    def _later(self, front: _Front, version: int, group: Group) -> list[SparseUpdate]:
        if front.torn:
            raise Conflict(f"the diff of group {group.number} was cut off; its cells in version {version} are lost")
        return [change for number, change in front.changes if number > version]

    def _take_back(self, version: int) -> None:
        for front in self._fronts:
            with front.lock:
                while front.changes and front.changes[-1][0] >= version:
                    front.changes.pop()[1].undo(self._backend, self._weights)

    def _code(self, version: int, change: SparseUpdate, coder: CoderChoice, timeline: Timeline) -> Coded:
        return code_change(self._backend, change, coder, lambda: self.lent(version, change.group), timeline)

    def _take(self, views: Mapping[str, View], version: int, group: Group) -> SparseUpdate | None:
        front, live = self._fronts[group.number], spans_of(views, self.geometry, group)
        with front.lock:
            front.torn = True  # unless all spans arrive
            change = self._diff(live, group)
            if change is not None:
                front.changes.append((version, change))
            front.torn = False
        return change

    def _diff(self, live: Spans, group: Group) -> SparseUpdate | None:
        base = self._weights.laid_out(group)
        index, old, new, *sums = self._backend.advance_spans(live, base, group.start)
        if not len(index):
            return None
        return SparseUpdate(group, index, old, new, [(Digest(*sums[0]), Digest(*sums[1]))])


def first_shadow(
    context: Context,
    placement: Placement,
    geometry: Geometry,
    views: Mapping[str, View],
    version: int,
    place: ShadowPlace = "device",
) -> Shadow:
    """Copy live tensors into a shadow that stands for ``version``, where ``placement`` says that they are worked on.

    Its ``destination`` may be brought to another version before it is used. ``place`` counts for tensors on a device.
    """
    device = placement(views)
    if device is None:
        return first_host_shadow(geometry, views, context.backend, context.pool, version)
    from pulse_registry.gpu.shadow import empty_device_shadow, first_device_shadow

    def host(weights: Weights) -> HostDestination:
        return HostDestination(weights, context.backend, context.pool)

    return first_device_shadow(empty_device_shadow(geometry, device, context.pool, host, place), views, version)


def first_host_shadow(
    geometry: Geometry, views: Mapping[str, View], backend: Backend, pool: Executor, version: int
) -> HostShadow:
    """Copy live tensors, rounded where the layout says so, into host memory."""
    weights = Weights.in_one_piece(geometry)

    def take(group: Group) -> Digest:
        for span, cells in zip(group.spans, weights.spans(group), strict=True):
            tensor = geometry.layout.tensors[span.tensor]
            view = views[tensor.name]
            live = view.span(span.start, span.stop)
            if view.dtype == tensor.dtype:
                cells[:] = live
            else:
                backend.cast_f32(live, cells)
        return weights.digest_of(backend, group)

    digest = sum(ParallelMap(pool)(take, geometry.groups), Digest())
    return HostShadow(weights, backend, pool, version, digest)
