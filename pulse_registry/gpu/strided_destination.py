"""Slices on a device that are views with gaps, as what a pull changes: cell by cell, through their strides.

The kernels for whole models take cells that lie end to end. Here the changed cells alone travel between host memory,
where their changes are found, and the device; nothing of the model is copied but what is being read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pulse_kernels import CELL_TYPES, Cells
from pulse_registry.errors import InvalidModel
from pulse_registry.format.sparse_update import HostUpdate, ModelUpdate, SparseUpdate
from pulse_registry.gpu.stream import DeviceStream
from pulse_registry.gpu.stream_order import Memory
from pulse_registry.gpu.strided_cells import StridedCells
from pulse_registry.gpu.tile_table import TileTable, tile_tables, total
from pulse_registry.pull.destination import Source
from pulse_registry.timeline import Timeline
from pulse_registry.weights.arrays import parts
from pulse_registry.weights.cell_access import Where
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import View

DIGESTED_BYTES = 64 << 20
"""Cells that are copied end to end at a time, to be digested."""


@dataclass(frozen=True, slots=True)
class StridedUpdate:
    """What changes in tensors of any strides.

    Attributes:
        host: the same in host memory.
        changes: by tensor, where in its memory, what is there, and what will be, on the device.
        stream: that moved them there.
    """

    host: HostUpdate
    changes: tuple[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor], ...]
    stream: DeviceStream

    @property
    def changed(self) -> int:
        """Cells that differ."""
        return self.host.changed

    @property
    def nbytes(self) -> int:
        """Bytes of memory, the host's and the device's."""
        return self.host.nbytes + sum(column.nbytes for _, *columns in self.changes for column in columns)

    def not_finite(self) -> int | None:
        """Return the flat index of the first new cell that is NaN or infinite, None if there is none."""
        return self.host.not_finite()


class StridedDestination:
    """Slices on a device, some not contiguous, as ``SlicedDestination`` changes them; see ``Destination``."""

    def __init__(self, geometry: Geometry, tensors: Sequence[torch.Tensor], stream: DeviceStream) -> None:
        """Take tensors in layout order, and the stream to read them on."""
        self.geometry = self.stored = geometry
        self._cells = [StridedCells(tensor) for tensor in tensors]
        self._stream = stream
        self._memory = Memory(stream.device, tensors)
        with stream.work(after_caller=True):  # who reads in other threads comes behind what this one has queued
            self._tables = tile_tables(geometry, stream.device)

    @classmethod
    def into(cls, geometry: Geometry, views: Mapping[str, View], device: torch.device) -> StridedDestination:
        """Take a worker's tensors, which are those of the layout, as the place to write.

        Raises:
            InvalidModel: a tensor can't be written in place.
        """
        tensors = [views[tensor.name].tensor for tensor in geometry.layout.tensors]
        for tensor, wanted in zip(tensors, geometry.layout.tensors, strict=True):
            if _overlaps_itself(tensor):
                raise InvalidModel(f"tensor {wanted.name!r} is expanded: several of its cells share memory")
        return cls(geometry, tensors, DeviceStream(device))

    def join(self, sources: Sequence[Source], fetchers: Executor, timeline: Timeline) -> tuple[ModelUpdate, Digest]:
        """Refuse: whoever holds slices joins what their groups say."""
        raise TypeError("strided tensors on a device are joined as the slices that they are")

    def apply(self, changes: ModelUpdate) -> None:
        """Store the new cells: one launch a tensor, on the caller's stream."""
        self._store(changes, new=True)

    def undo(self, changes: ModelUpdate) -> None:
        """Store the old cells: one launch a tensor, on the caller's stream."""
        self._store(changes, new=False)

    def read(self, group: Group) -> Cells:
        """Return a copy of a group's cells, in host memory."""
        with self._stream.work(after_caller=True), self._memory.read():
            return self._downloaded(torch.cat(self._runs(group))).view(group.cell_type.dtype)

    @contextmanager
    def filling(self) -> Iterator[Callable[[Group, Cells], None]]:
        """Return a context in which all cells are stored, through pinned memory; it ends when the device is done."""

        def store(group: Group, cells: Cells) -> None:
            host, at = torch.from_numpy(cells.view(_travelling(cells.itemsize))), 0
            with self._stream.work():
                there = torch.empty(host.shape, dtype=host.dtype, device=self._stream.device)
                self._stream.upload(host, [there])
                for span in group.spans:
                    size = span.stop - span.start
                    self._cells[span.tensor].fill(span.start, there[at : at + size])
                    at += size

        with self._stream.work(after_caller=True), self._memory.written():
            yield store
        self._stream.wait()

    def digest(self) -> Digest:
        """Return the state digest by a full pass, some groups at a time."""
        with self._stream.work(after_caller=True), self._memory.read():
            return sum(
                (self._digest(part) for table in self._tables for part in table.batches(DIGESTED_BYTES)), Digest()
            )

    def cells(self, tensor: int, where: Where) -> Cells:
        """Return some cells of a tensor, in host memory."""
        cells = self._cells[tensor]
        with self._stream.work(after_caller=True), self._memory.read():
            if isinstance(where, slice):
                found = cells.run(where.start, where.stop)
            else:
                found = cells.gather(cells.offsets(torch.from_numpy(where).to(self._stream.device)))
            dtype = CELL_TYPES[self.geometry.layout.tensors[tensor].dtype].dtype
            return self._downloaded(found).view(dtype)

    def from_host(self, changes: HostUpdate) -> StridedUpdate:
        """Return an update that was made in host memory, on the device."""
        with self._stream.work():
            found = [
                (number, self._cells[number].offsets(self._uploaded(places)), *self._columns(change, chosen))
                for change in changes.groups
                for number, places, chosen in parts(change.group, change.index)
            ]
        return StridedUpdate(changes, tuple(found), self._stream)

    def to_host(self, changes: ModelUpdate) -> HostUpdate:
        """Return an update of these weights in host memory."""
        if isinstance(changes, StridedUpdate):
            return changes.host
        if changes.changed:
            raise TypeError(f"a {type(changes).__name__} is none of strided tensors on a device")
        return HostUpdate()

    def _store(self, changes: ModelUpdate, *, new: bool) -> None:
        if not isinstance(changes, StridedUpdate):
            raise TypeError(f"a {type(changes).__name__} can't be applied to strided tensors on a device")
        with self._stream.callers(), changes.stream.callers(), self._memory.written():
            for number, offsets, before, after in changes.changes:
                self._cells[number].scatter(offsets, after if new else before)

    def _runs(self, group: Group) -> list[torch.Tensor]:
        return [self._cells[span.tensor].run(span.start, span.stop) for span in group.spans]

    def _digest(self, table: TileTable) -> Digest:
        copy = torch.cat([run for group in table.groups for run in self._runs(group)])
        return total([table.tiles.packed(copy)])

    def _downloaded(self, tensor: torch.Tensor) -> Cells:
        found: Cells = self._stream.download(tensor).numpy()
        return found

    def _columns(self, change: SparseUpdate, chosen: slice) -> tuple[torch.Tensor, torch.Tensor]:
        old, new = (side[chosen].view(_travelling(side.itemsize)) for side in (change.old, change.new))
        return self._uploaded(old), self._uploaded(new)

    def _uploaded(self, column: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(column)).to(self._stream.device)


def _travelling(width: int) -> str:
    """Return the integers that cells of a width travel as: torch has no unsigned ones but bytes."""
    return f"i{width}" if width > 1 else "u1"


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Tell whether several cells of a tensor share memory."""
    reach = 0
    for step, length in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if step <= reach:
            return tensor.numel() > 0
        reach += (length - 1) * step
    return False
