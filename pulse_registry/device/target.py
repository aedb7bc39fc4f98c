"""Weights on a device as the target of a pull: coded groups go up, and all else happens there.

One leg is decoded against the live weights, which are only read. A longer chain is walked batch by batch in a copy of
some groups, which then is compared with the live weights: so it takes no more memory than a batch, however long it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor

import torch

from pulse_kernels import Cells, CodecError, CoderName, RankError
from pulse_kernels.triton import apply
from pulse_kernels.triton.changes import Changes as Changed
from pulse_kernels.triton.changes import no_cells
from pulse_kernels.triton.codes_decode import decode_changes
from pulse_kernels.triton.diff import diff
from pulse_kernels.triton.merge import merge
from pulse_kernels.triton.sheet import CELL_DTYPES, Sheet
from pulse_registry.arrival import arriving
from pulse_registry.change import Changes
from pulse_registry.device.changes import DeviceChanges, cut, joined, reversed_, sums_of
from pulse_registry.device.lane import Lane
from pulse_registry.device.parts import Part, cells_in_place, parts_of, spans_of, total
from pulse_registry.digest import Digest
from pulse_registry.errors import BaseMismatch, CorruptObject
from pulse_registry.geometry import Geometry, Group
from pulse_registry.model import View
from pulse_registry.target import Source, wrong_base
from pulse_registry.timeline import Timeline

BATCH_BYTES = 256 << 20
"""Cells that a chain of several legs is walked in at a time; the copy takes as much memory."""
Arrived = Mapping[int, Mapping[int, memoryview]]
"""By number of the source and of the group: the coded bytes, checked."""


class DeviceTarget:
    """Weights on a device; see ``Target``."""

    def __init__(self, geometry: Geometry, cells: Sequence[torch.Tensor], device: torch.device) -> None:
        """Take contiguous tensors in layout order."""
        self.geometry = geometry
        self._cells = cells
        self._lane = Lane(device)
        self._parts = parts_of(geometry, device)
        self._sheets = [part.tiles.over(cells) for part in self._parts]

    @classmethod
    def into(cls, geometry: Geometry, views: Mapping[str, View], device: torch.device) -> DeviceTarget:
        """Take a worker's tensors, which are those of the layout, as the place to write.

        Raises:
            InvalidModel: a tensor can't be written in place.
        """
        return cls(geometry, cells_in_place(geometry, views), device)

    def join(self, sources: Sequence[Source], fetchers: Executor, timeline: Timeline) -> tuple[DeviceChanges, Digest]:
        """Decode and join all legs on a lane beside the model; see ``Target.join``."""
        if not sources:
            return DeviceChanges(()), Digest()
        arrived = self._arrived(sources, fetchers, timeline)
        began = timeline.clock()
        with self._lane.work(after_caller=True):
            if len(sources) == 1:
                pairs = zip(self._parts, self._sheets, strict=True)
                steps = [self._step(part, part, sheet, sources[0], arrived.get(0, {})) for part, sheet in pairs]
                changes = DeviceChanges(tuple(step for step, _ in steps))
                digest = sum((delta for _, delta in steps), Digest())
            else:
                walks = [self._walk(part, sources, arrived) for part in self._parts]
                changes = DeviceChanges(tuple(walk for walk, _ in walks))
                digest = sum((delta for _, delta in walks), Digest())
        timeline.note("decode", began, nbytes=sum(len(data) for groups in arrived.values() for data in groups.values()))
        timeline.note("verify", timeline.clock())
        return changes, digest

    def apply(self, changes: Changes) -> None:
        """Store the new cells: one launch a cell width, on the caller's stream."""
        self._store(changes, apply.scatter)

    def undo(self, changes: Changes) -> None:
        """Store the old cells: one launch a cell width, on the caller's stream."""
        self._store(changes, apply.undo)

    def read(self, group: Group) -> Cells:
        """Return a copy of a group's cells, in host memory."""
        with self._lane.work(after_caller=True):
            cells = self._lane.download(torch.cat(spans_of(group, self._cells)))
        return cells.numpy().view(group.cell_type.dtype)

    def fill(self, group: Group, cells: Cells) -> None:
        """Store all cells of a group, through pinned memory."""
        self._lane.wait_for_all()  # a pool's thread can't tell on which stream the caller's last apply was
        with self._lane.work(after_caller=True):
            host = torch.from_numpy(cells.view(f"i{cells.itemsize}" if cells.itemsize > 1 else "u1"))
            self._lane.upload(host, spans_of(group, self._cells))

    def digest(self) -> Digest:
        """Return the state digest by a full pass."""
        with self._lane.work(after_caller=True):
            return total(self._sheets)

    def _store(self, changes: Changes, store: Callable[[Sheet, Changed], None]) -> None:
        if not isinstance(changes, DeviceChanges):
            raise TypeError(f"{type(changes).__name__} are changes of other weights than those on a device")
        with self._lane.callers(changes.tensors):
            for sheet, part in zip(self._sheets, changes.parts, strict=False):  # no parts where nothing changes
                store(sheet, part)

    def _arrived(self, sources: Sequence[Source], fetchers: Executor, timeline: Timeline) -> Arrived:
        patches = {number: source.patch for number, source in enumerate(sources) if source.patch is not None}
        touched = sorted({number for patch in patches.values() for number in patch.entries})
        arrived: dict[int, dict[int, memoryview]] = {number: {} for number in patches}
        for group in arriving(list(patches.values()), touched, fetchers, timeline):
            for number, patch in patches.items():
                if group in patch.entries:
                    arrived[number][group] = patch.coded(group)
        return arrived

    def _walk(self, whole: Part, sources: Sequence[Source], arrived: Arrived) -> tuple[Changed, Digest]:
        """Follow a chain in copies of the cells; return what it changes of a part, and its part of the digest."""
        found, digest = [], Digest()
        for part in whole.batches(BATCH_BYTES):
            size = int(part.tiles.group_cells.sum())
            copy = part.tiles.packed(torch.empty(size, dtype=CELL_DTYPES[part.tiles.width], device=self._lane.device))
            live = part.tiles.over(self._cells)
            apply.copy(live, copy)
            for number, source in enumerate(sources):
                step, delta = self._step(whole, part, copy, source, arrived.get(number, {}))
                apply.scatter(copy, step)
                digest += delta
            found.append(diff(copy, live))
        return joined(whole, found), digest

    def _step(
        self, whole: Part, part: Part, base: Sheet, source: Source, coded: Mapping[int, memoryview]
    ) -> tuple[Changed, Digest]:
        """Return what one leg changes of a part's cells, checked at each of them, and what that adds to the digest."""
        if source.patch is not None:
            step = self._decoded(part, base, source, coded)
        elif isinstance(source.step, DeviceChanges):
            step = self._taken_back(part, base, cut(_of_part(source.step, whole), whole, part))
        else:
            raise TypeError(f"{type(source.step).__name__} are changes of other weights than those on a device")
        digest = Digest()
        for group, (old, new) in zip(part.groups, sums_of(step), strict=True):
            if source.patch is not None and (entry := source.patch.entries.get(group.number)) is not None:
                expected = (entry.old_sum, entry.new_sum)[:: -1 if source.leg.kind == "inverse" else 1]
                if (old, new) != expected:
                    raise wrong_base(self.geometry, group, source.leg.base)
            digest += new - old
        return step, digest

    def _decoded(self, part: Part, base: Sheet, source: Source, coded: Mapping[int, memoryview]) -> Changed:
        steps = [self._decoded_as(part, base, source, coded, name) for name in _coders(part, source)]
        return merge(*steps) if len(steps) == 2 else steps[0]

    def _decoded_as(
        self, part: Part, base: Sheet, source: Source, coded: Mapping[int, memoryview], coder: CoderName
    ) -> Changed:
        """Decode the groups of one coder, and meet them with the cells that they move."""
        patch = source.patch
        if patch is None:
            raise TypeError("a leg without a patch is not decoded")
        tiles, key = part.tiles, patch.ref.object.key
        of_coder = [
            (entry.changed, coded[group.number])
            if (entry := patch.entries.get(group.number)) is not None and entry.coder == coder
            else (0, b"")
            for group in part.groups
        ]
        try:
            moves = decode_changes(tiles, coder, [n for n, _ in of_coder], [data for _, data in of_coder], base)
        except RankError as error:
            raise BaseMismatch(f"{key}: coded against other weights than version {patch.ref.base}: {error}") from error
        except CodecError as error:
            raise CorruptObject(f"{key}: {error}") from error
        offsets = apply.locate(tiles, moves.index, moves.group_offsets)
        old = apply.gather(base, offsets, moves.index)
        distance = -moves.distance if source.leg.kind == "inverse" else moves.distance
        new = apply.move(tiles, offsets, old, distance)
        return Changed(tiles, moves.index, old, new, offsets, moves.group_offsets, moves.host_offsets)

    def _taken_back(self, part: Part, base: Sheet, step: Changed) -> Changed:
        """Return the way back of a step that was applied to these weights, if they still are what it made them."""
        if len(step):
            found = apply.gather(base, step.tile_offsets, step.index)
            wrong = torch.nonzero(found != step.new)[:1].flatten().tolist()
            if wrong:
                number = int((step.host_offsets <= wrong[0]).sum()) - 1
                raise wrong_base(self.geometry, part.groups[number], None)
        return reversed_(step)


def _coders(part: Part, source: Source) -> tuple[CoderName, ...]:
    """Return the coders of a patch's groups in a part; one, where it has none."""
    entries = {} if source.patch is None else source.patch.entries
    found = {entries[group.number].coder for group in part.groups if group.number in entries}
    return tuple(name for name in ("gap", "class") if name in found) or ("gap",)


def _of_part(changes: DeviceChanges, part: Part) -> Changed:
    for found in changes.parts:
        if found.tiles.width == part.tiles.width:
            return found
    tiles = part.tiles
    nothing, none = torch.zeros(tiles.groups + 1, dtype=torch.int64, device=tiles.device), no_cells(tiles, 0)
    offsets = torch.zeros(len(tiles) + 1, dtype=torch.int64, device=tiles.device)
    index = torch.empty(0, dtype=torch.int32, device=tiles.device)
    return Changed(tiles, index, none, none, offsets, nothing, nothing.cpu().numpy())
