"""The shadow of a model on a device: diffed, coded and moved on there.

The trainer waits until its weights have been read. What they changed is put in order, summed up and coded behind that;
coding needs the cells as they were, so that the shadow moves on at the end, on a stream of its own. Whatever needs the
cells, or their digest, before that waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace

import torch

from pulse_kernels import Cells
from pulse_kernels.gpu import apply
from pulse_kernels.gpu.changes import Changes
from pulse_kernels.gpu.diff import diff
from pulse_kernels.gpu.tiling import Tiling
from pulse_registry.format.patch_coding import Coded, CoderChoice
from pulse_registry.format.sparse_update import HostUpdate
from pulse_registry.gpu.coding import code_groups
from pulse_registry.gpu.host_update import downloaded
from pulse_registry.gpu.shadow_storage import ResidentStorage, ShadowStorage, StreamedStorage
from pulse_registry.gpu.sparse_update import DeviceUpdate, sums_of
from pulse_registry.gpu.stream import DeviceStream
from pulse_registry.gpu.stream_order import Memory
from pulse_registry.gpu.tile_table import live_cells, total
from pulse_registry.pull.destination import Destination, HostDestination
from pulse_registry.timeline import Timeline
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.device import ShadowPlace
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import View

Sums = list[tuple[Digest, Digest]]


@dataclass(slots=True)
class DeviceAdvance:
    """An advance whose groups are coded on the device."""

    version: int
    _summing: Future[tuple[list[Sums], Digest]]
    _coding: Future[list[Coded]]

    @property
    def digest(self) -> Digest:
        """Of the version; waits for the device."""
        return self._summing.result()[1]

    def coded(self) -> Iterator[Coded]:
        """Yield each group that changed, in group order."""
        yield from self._coding.result()

    def stop(self) -> None:
        """Nothing to give up: the coding has begun, and the shadow moves on behind it."""


class DeviceShadow:
    """A shadow whose cells are diffed and coded on a device; see ``Shadow``."""

    def __init__(self, geometry: Geometry, storage: ShadowStorage, stream: DeviceStream, pool: Executor) -> None:
        """Take a storage whose cells are to be filled through ``destination`` or ``take``, before ``resume``."""
        self.geometry = geometry
        self.version = -1
        self._digest: Digest | Future[tuple[list[Sums], Digest]] = Digest()
        self._storage = storage
        self._stream = stream
        self._pool = pool
        self._lock = threading.RLock()
        self._pending: list[tuple[int, Digest, DeviceUpdate]] = []  # versions on their way, each with what it changes
        self._coding: Future[list[Coded]] | None = None
        self._live: tuple[tuple[object, ...], list[Tiling]] = ((), [])

    @property
    def digest(self) -> Digest:
        """Of the newest version's cells; waits for the device where they have just been diffed."""
        known = self._digest
        return known if isinstance(known, Digest) else known.result()[1]

    def take(self, views: Mapping[str, View]) -> None:
        """Copy live tensors, rounded where the layout says so."""
        with self._lock, self._stream.work(after_caller=True), self._live_memory(views).read():
            digest = Digest()
            for number, live in enumerate(self._over(views)):
                with self._storage.lent(number, write=True) as tiling:
                    apply.copy(live, tiling)
                    digest += total([tiling])
            self._digest = digest

    def destination(self) -> Destination:
        """Return the cells as what a pull changes; see ``Shadow.destination``."""
        with self._lock:
            self._settled()
            return self._storage.destination()

    def resume(self, version: int, digest: Digest) -> None:
        """Stand for a version that ``destination`` was brought to."""
        self.version, self._digest = version, digest

    def advance(self, views: Mapping[str, View], coder: CoderChoice | None, timeline: Timeline) -> DeviceAdvance:
        """Diff live tensors against the shadow; see ``Shadow.advance``."""
        with self._lock:
            self._settled()
            began, version, before, changes = timeline.clock(), self.version + 1, self.digest, []
            with self._stream.work(after_caller=True), self._live_memory(views).read():
                for number, live in enumerate(self._over(views)):
                    with self._storage.lent(number) as base:
                        changes.append(diff(live, base))
            timeline.note("diff", began, nbytes=self.geometry.nbytes)
            summing = self._pool.submit(self._sum, changes, before)
            self._coding = self._pool.submit(self._code, changes, summing, coder, timeline)
            self._pending.append((version, before, DeviceUpdate(tuple(changes), self._stream)))
            self.version, self._digest = version, summing
            return DeviceAdvance(version, summing, self._coding)

    def settle(self, version: int) -> None:
        """Forget how to take a version back: it is committed."""
        with self._lock:
            self._pending = [entry for entry in self._pending if entry[0] > version]

    def revert(self, version: int) -> None:
        """Take back ``version`` and all after it."""
        with self._lock:
            self._settled()
            while self._pending and self._pending[-1][0] >= version:
                number, self._digest, changes = self._pending.pop()
                self.version = number - 1
                self._store(changes.by_table, apply.undo)

    def changes_of(self, version: int) -> DeviceUpdate:
        """Return what ``version``, which is on its way, changed of the one before."""
        with self._lock:
            return next(changes for number, _, changes in self._pending if number == version)

    def listed(self, version: int) -> HostUpdate:
        """Return the same in host memory."""
        with self._lock:
            update = self.changes_of(version)
            with self._stream.work():
                found = [
                    change
                    for window, changes in zip(self._storage.windows, update.by_table, strict=True)
                    for change in downloaded(window, changes, self._stream)
                ]
        return HostUpdate(tuple(sorted(found, key=lambda change: change.group.number)))

    def cells_at(self, version: int, group: Group) -> Cells:
        """Return a copy of a group's cells as they are in ``version``, which is the newest committed or later."""
        with self._lock:
            self._settled()
            window, number = self._place(group)
            with self._stream.work():
                cells = self._storage.read(group)
                for later, _, pending in reversed(self._pending):
                    if later > version:
                        changes = pending.by_table[window]
                        begin, end = (int(at) for at in changes.host_offsets[number : number + 2])
                        where = changes.index[begin:end].to(cells.device, torch.int64)
                        cells[where] = changes.old[begin:end].to(cells.device)
                return self._stream.download(cells).numpy().view(group.cell_type.dtype)

    def digest_at(self, version: int) -> Digest:
        """Return the digest of the cells that ``cells_at`` gives."""
        with self._lock:
            later = next((before for number, before, _ in self._pending if number > version), None)
            return self.digest if later is None else later

    def _sum(self, changes: list[Changes], before: Digest) -> tuple[list[Sums], Digest]:
        """Return the sums of what changed, by window and group, and the digest after it."""
        with self._stream.work():
            sums = [sums_of(window) for window in changes]
        return sums, before + sum((new - old for window in sums for old, new in window), Digest())

    def _code(
        self,
        changes: list[Changes],
        summing: Future[tuple[list[Sums], Digest]],
        coder: CoderChoice | None,
        timeline: Timeline,
    ) -> list[Coded]:
        began, found, moved = timeline.clock(), list[Coded](), 0
        try:
            sums, _ = summing.result()  # it was queued before this, so that no thread waits for one behind it
            for number, window in enumerate(self._storage.windows):
                if coder is None:
                    break  # ranks of a sharded model code elsewhere
                if len(changes[number]):
                    with self._stream.work(), self._storage.lent(number, write=True) as base:
                        found += code_groups(self._stream, window, changes[number], sums[number], base, coder)
                        apply.scatter(base, changes[number])
                moved = number + 1
        finally:
            # The shadow moves on whatever becomes of the coding: its version says that it has.
            self._store(changes, apply.scatter, moved)
        timeline.note("code", began, nbytes=sum(len(coded.data) for coded in found))
        return sorted(found, key=lambda coded: coded.entry.group)

    def _store(self, changes: Sequence[Changes], store: Callable[[Tiling, Changes], None], first: int = 0) -> None:
        """Store the old or the new cells of the windows from number ``first`` on."""
        for number in range(first, len(changes)):
            if len(changes[number]):
                with self._stream.work(), self._storage.lent(number, write=True) as tiling:
                    store(tiling, changes[number])

    def _settled(self) -> None:
        """Wait until the cells are those of the newest version."""
        if self._coding is not None:
            self._coding.exception()  # its reader raises it
            self._coding = None

    def _live_memory(self, views: Mapping[str, View]) -> Memory:
        return Memory(self._stream.device, [view.tensor for view in views.values()])

    def _over(self, views: Mapping[str, View]) -> list[Tiling]:
        """Lay the windows' tiles over live tensors; addresses that did not move are not uploaded again."""
        key = tuple(views[tensor.name].identity for tensor in self.geometry.layout.tensors)
        if key != self._live[0]:
            tensors = live_cells(self.geometry, views, self._stream.device)
            tilings = [window.tiles.over(tensors) for window in self._storage.windows]
            if any(tensor.data_ptr() != identity[0] for tensor, identity in zip(tensors, key, strict=True)):
                return tilings  # of copies
            # Without the tensors: a trainer that lets go of its model gets the memory back.
            self._live = key, [replace(tiling, tensors=()) for tiling in tilings]
        return self._live[1]

    def _place(self, group: Group) -> tuple[int, int]:
        """Return a group's window and its number there."""
        for window, table in enumerate(self._storage.windows):
            for number, found in enumerate(table.groups):
                if found.number == group.number:
                    return window, number
        raise LookupError(f"group {group.number} is not of this layout")


def empty_device_shadow(
    geometry: Geometry,
    device: torch.device,
    pool: Executor,
    host: Callable[[Weights], HostDestination],
    place: ShadowPlace,
) -> DeviceShadow:
    """Make a shadow that holds nothing yet, in device memory or streamed from pinned host memory.

    Args:
        geometry: of the layout.
        device: of the model.
        pool: codes.
        host: makes the target of weights in host memory.
        place: where its cells stay.
    """
    stream = DeviceStream(device)
    if place == "device":
        return DeviceShadow(geometry, ResidentStorage(geometry, stream), stream, pool)
    return DeviceShadow(geometry, StreamedStorage(geometry, stream, host), stream, pool)


def first_device_shadow(shadow: DeviceShadow, views: Mapping[str, View], version: int) -> DeviceShadow:
    """Copy live tensors into an empty shadow, which then stands for ``version``."""
    shadow.take(views)
    shadow.resume(version, shadow.digest)
    return shadow
