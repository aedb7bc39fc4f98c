"""Weights on a device as the target of a pull: coded groups go up, and all else happens there.

One leg is decoded against the live weights, which are only read, while the rest of it is still coming. A longer chain
is walked batch by batch in a copy of some groups, which then is compared with the live weights: so it takes no more
memory than a batch, however long it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from typing import NoReturn

import torch

from pulse_kernels import CELL_TYPES, Cells, CodecError, CoderName, RankError
from pulse_kernels.gpu import apply
from pulse_kernels.gpu.changes import Changes as Changed
from pulse_kernels.gpu.changes import no_cells
from pulse_kernels.gpu.coding.decode import decode_changes
from pulse_kernels.gpu.diff import diff
from pulse_kernels.gpu.merge import merge
from pulse_kernels.gpu.tiling import CELL_DTYPES, Tiling
from pulse_registry.errors import BaseMismatch, CorruptObject, about
from pulse_registry.format.sparse_update import HostUpdate, ModelUpdate
from pulse_registry.gpu.group_batches import Arrival, Arrived
from pulse_registry.gpu.host_update import downloaded, uploaded
from pulse_registry.gpu.sparse_update import Collected, DeviceUpdate, cut, reversed_, sums_of
from pulse_registry.gpu.stream import DeviceStream
from pulse_registry.gpu.stream_order import Memory
from pulse_registry.gpu.tile_table import TileTable, cells_in_place, spans_of, tile_tables, total
from pulse_registry.pull.destination import Source, wrong_base
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_access import Where
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import View

DECODED_BYTES = 1 << 30
"""Cells whose changes are decoded at a time: what that takes beside the changes is under 1 % of a model of 16 GB."""
WALKED_BYTES = 256 << 20
"""Cells that a chain of several legs is walked in at a time; the copy takes as much memory."""


class DeviceDestination:
    """Weights on a device; see ``Destination``."""

    def __init__(self, geometry: Geometry, cells: Sequence[torch.Tensor], stream: DeviceStream) -> None:
        """Take contiguous tensors in layout order, and the stream to read them on."""
        self.geometry = self.stored = geometry
        self._cells = cells
        self._stream = stream
        self._memory = Memory(stream.device, cells)
        self._tables = tile_tables(geometry, stream.device)
        with stream.work(after_caller=True):  # who reads in other threads comes behind what this one has queued
            self._tilings = [self._over(table) for table in self._tables]

    @classmethod
    def into(cls, geometry: Geometry, views: Mapping[str, View], device: torch.device) -> DeviceDestination:
        """Take a worker's tensors, which are those of the layout, as the place to write.

        Raises:
            InvalidModel: a tensor can't be written in place.
        """
        return cls(geometry, cells_in_place(geometry, views), DeviceStream(device))

    def join(self, sources: Sequence[Source], fetchers: Executor, timeline: Timeline) -> tuple[DeviceUpdate, Digest]:
        """Decode and join all legs on a stream beside the model; see ``Destination.join``."""
        if not sources:
            return DeviceUpdate((), self._stream), Digest()
        arrival = Arrival(sources, fetchers, timeline)
        follow = self._stepped if len(sources) == 1 else self._walked
        with closing(arrival), self._stream.work(after_caller=True), self._memory.read():
            for source in sources:
                if isinstance(source.step, DeviceUpdate):
                    self._take_in(source.step)
            found = [follow(table, sources, arrival, timeline) for table in self._tables]
        timeline.note("verify", timeline.clock())
        changes = DeviceUpdate(tuple(changes for changes, _ in found), self._stream)
        return changes, sum((delta for _, delta in found), Digest())

    def apply(self, changes: ModelUpdate) -> None:
        """Store the new cells: one launch a cell width, on the caller's stream."""
        self._store(changes, apply.scatter)

    def undo(self, changes: ModelUpdate) -> None:
        """Store the old cells: one launch a cell width, on the caller's stream."""
        self._store(changes, apply.undo)

    def read(self, group: Group) -> Cells:
        """Return a copy of a group's cells, in host memory."""
        with self._stream.work(after_caller=True), self._memory.read():
            cells = self._stream.download(torch.cat(spans_of(group, self._cells)))
        return cells.numpy().view(group.cell_type.dtype)

    @contextmanager
    def filling(self) -> Iterator[Callable[[Group, Cells], None]]:
        """Return a context in which all cells are stored, through pinned memory; it ends when the device is done."""

        def store(group: Group, cells: Cells) -> None:
            host = torch.from_numpy(cells.view(f"i{cells.itemsize}" if cells.itemsize > 1 else "u1"))
            with self._stream.work():
                self._stream.upload(host, spans_of(group, self._cells))

        with self._stream.work(after_caller=True), self._memory.written():
            yield store
        self._stream.wait()

    def digest(self) -> Digest:
        """Return the state digest by a full pass."""
        with self._stream.work(after_caller=True), self._memory.read():
            return total(self._tilings)

    def cells(self, tensor: int, where: Where) -> Cells:
        """Return some cells of a tensor, in host memory."""
        flat = self._cells[tensor].view(-1)
        flat = flat.view(CELL_DTYPES[flat.element_size()])
        with self._stream.work(after_caller=True), self._memory.read():
            part = flat[where] if isinstance(where, slice) else flat[torch.from_numpy(where).to(flat.device)]
            found = self._stream.download(part)
        return found.numpy().view(CELL_TYPES[self.geometry.layout.tensors[tensor].dtype].dtype)

    def from_host(self, changes: HostUpdate) -> DeviceUpdate:
        """Return an update that was made in host memory, on the device."""
        groups = {change.group.number: change for change in changes.groups}
        with self._stream.work():
            return DeviceUpdate(tuple(uploaded(table, groups) for table in self._tables), self._stream)

    def to_host(self, changes: ModelUpdate) -> HostUpdate:
        """Return an update of these weights in host memory."""
        if not isinstance(changes, DeviceUpdate):
            return HostUpdate() if not changes.changed else _refuse(changes)
        with self._stream.work(after_caller=True):
            self._take_in(changes)
            found = [
                change
                for table, one in zip(self._tables, changes.by_table, strict=False)  # none where nothing changes
                for change in downloaded(table, one, self._stream)
            ]
        return HostUpdate(tuple(sorted(found, key=lambda change: change.group.number)))

    def _over(self, table: TileTable) -> Tiling:
        """Lay a table's tiles over the cells, on the stream."""
        self._stream.keep(table.tiles.tables)
        return table.tiles.over(self._cells)

    def _take_in(self, changes: DeviceUpdate) -> None:
        """Let the stream read changes that another one made."""
        self._stream.follow(changes.stream)
        self._stream.keep(tensor for change in changes.by_table for tensor in change.tensors)

    def _store(self, changes: ModelUpdate, store: Callable[[Tiling, Changed], None]) -> None:
        if not isinstance(changes, DeviceUpdate):
            _refuse(changes)
        with self._stream.callers(), changes.stream.callers(), self._memory.written():
            for tiling, change in zip(self._tilings, changes.by_table, strict=False):  # none where nothing changes
                store(tiling, change)

    def _stepped(
        self, whole: TileTable, sources: Sequence[Source], arrival: Arrival, timeline: Timeline
    ) -> tuple[Changed, Digest]:
        """Decode one leg against the live weights, batch by batch as it comes."""
        source, digest = sources[0], Digest()
        batches = whole.batches(DECODED_BYTES)
        collected = Collected(whole, _most(whole, source) if len(batches) > 1 else 0)
        for table in batches:
            coded, began = arrival.of(table), timeline.clock()
            base = self._over(table)
            step, delta = self._step(whole, table, base, source, coded.get(0, {}))
            digest += delta
            timeline.note("decode", began, nbytes=_size(coded))
            if table is whole:
                return step, digest
            collected.add(step)
        return collected.changes(), digest

    def _walked(
        self, whole: TileTable, sources: Sequence[Source], arrival: Arrival, timeline: Timeline
    ) -> tuple[Changed, Digest]:
        """Follow a chain in copies of the cells, batch by batch; return where it leads away from the live ones."""
        digest = Digest()
        collected = Collected(whole, max(_most(whole, source) for source in sources))
        for table in whole.batches(WALKED_BYTES):
            coded, began = arrival.of(table), timeline.clock()
            copy = table.tiles.packed(no_cells(table.tiles, int(table.tiles.group_cells.sum())))
            live = self._over(table)
            apply.copy(live, copy)
            for number, source in enumerate(sources):
                step, delta = self._step(whole, table, copy, source, coded.get(number, {}))
                apply.scatter(copy, step)
                digest += delta
            collected.add(diff(copy, live))
            timeline.note("decode", began, nbytes=_size(coded))
        return collected.changes(), digest

    def _step(
        self, whole: TileTable, table: TileTable, base: Tiling, source: Source, coded: Mapping[int, memoryview]
    ) -> tuple[Changed, Digest]:
        """Return what one leg changes of a table's cells, checked at each of them, and what that adds to the digest."""
        if source.patch is not None:
            step = self._decoded(table, base, source, coded)
        elif isinstance(source.step, DeviceUpdate):
            step = self._taken_back(table, base, cut(_of_table(source.step, whole), whole, table))
        else:
            raise TypeError(f"a {type(source.step).__name__} can't be undone in weights on a device")
        digest = Digest()
        for group, (old, new) in zip(table.groups, sums_of(step), strict=True):
            if source.patch is not None and (entry := source.patch.entries.get(group.number)) is not None:
                expected = (entry.old_sum, entry.new_sum)[:: -1 if source.leg.kind == "inverse" else 1]
                if (old, new) != expected:
                    raise wrong_base(self.geometry, group, source.leg.base)
            digest += new - old
        return step, digest

    def _decoded(self, table: TileTable, base: Tiling, source: Source, coded: Mapping[int, memoryview]) -> Changed:
        steps = [self._decoded_as(table, base, source, coded, name) for name in _coders(table, source)]
        return merge(*steps) if len(steps) == 2 else steps[0]

    def _decoded_as(
        self, table: TileTable, base: Tiling, source: Source, coded: Mapping[int, memoryview], coder: CoderName
    ) -> Changed:
        """Decode the groups of one coder, and meet them with the cells that they move."""
        patch = source.patch
        if patch is None:
            raise TypeError("a leg without a patch is not decoded")
        tiles, key = table.tiles, patch.ref.object.key
        of_coder = [
            (entry.changed, coded[group.number])
            if (entry := patch.entries.get(group.number)) is not None and entry.coder == coder
            else (0, b"")
            for group in table.groups
        ]
        with about(key):
            try:
                moves = decode_changes(tiles, coder, [n for n, _ in of_coder], [data for _, data in of_coder], base)
            except RankError as error:
                raise BaseMismatch(
                    f"{key}: coded against other weights than version {patch.ref.base}: {error}"
                ) from error
            except CodecError as error:
                raise CorruptObject(f"{key}: {error}") from error
        offsets = apply.locate(tiles, moves.index, moves.group_offsets)
        old = apply.gather(base, offsets, moves.index)
        distance = -moves.distance if source.leg.kind == "inverse" else moves.distance
        new = apply.move(tiles, offsets, old, distance)
        return Changed(tiles, moves.index, old, new, offsets, moves.group_offsets, moves.host_offsets)

    def _taken_back(self, table: TileTable, base: Tiling, step: Changed) -> Changed:
        """Return the undo of a step that was applied to these weights, if they still are what it made them."""
        if len(step):
            found = apply.gather(base, step.tile_offsets, step.index)
            wrong = torch.nonzero(found != step.new)[:1].flatten().tolist()
            if wrong:
                number = int((step.host_offsets <= wrong[0]).sum()) - 1
                raise wrong_base(self.geometry, table.groups[number], None)
        return reversed_(step)


def _refuse(changes: ModelUpdate) -> NoReturn:
    raise TypeError(f"a {type(changes).__name__} can't be applied to weights on a device")


def _coders(table: TileTable, source: Source) -> tuple[CoderName, ...]:
    """Return the coders of a patch's groups in a table; one, where it has none."""
    entries = {} if source.patch is None else source.patch.entries
    found = {entries[group.number].coder for group in table.groups if group.number in entries}
    return tuple(name for name in ("gap", "class") if name in found) or ("gap",)


def _most(table: TileTable, source: Source) -> int:
    """Return how many cells of a table a leg changes."""
    if source.patch is not None:
        entries = source.patch.entries
        return sum(entries[group.number].changed for group in table.groups if group.number in entries)
    return len(_of_table(source.step, table)) if isinstance(source.step, DeviceUpdate) else 0


def _size(coded: Arrived) -> int:
    return sum(len(data) for groups in coded.values() for data in groups.values())


def _of_table(changes: DeviceUpdate, table: TileTable) -> Changed:
    for found in changes.by_table:
        if found.tiles.width == table.tiles.width:
            return found
    tiles = table.tiles
    nothing, none = torch.zeros(tiles.groups + 1, dtype=torch.int64, device=tiles.device), no_cells(tiles, 0)
    offsets = torch.zeros(len(tiles) + 1, dtype=torch.int64, device=tiles.device)
    index = torch.empty(0, dtype=torch.int32, device=tiles.device)
    return Changed(tiles, index, none, none, offsets, nothing, nothing.cpu().numpy())
