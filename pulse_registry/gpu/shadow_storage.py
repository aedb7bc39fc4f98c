"""Storage of a shadow: where its cells stay, and how they come to the device to be worked on.

They are worked on in windows. Those of ``ResidentStorage`` are there, and a window is all groups of a cell width; those
of ``StreamedStorage`` stay in pinned host memory and come through two buffers in turn, the next window while one is
worked on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch

from pulse_kernels.gpu.tiling import CELL_DTYPES, Tiling
from pulse_registry.gpu.destination import DeviceDestination
from pulse_registry.gpu.pinned import pinned_bytes
from pulse_registry.gpu.stream import DeviceStream
from pulse_registry.gpu.tile_table import TileTable, empty_cells, spans_of, tile_tables
from pulse_registry.pull.destination import Destination, HostDestination
from pulse_registry.weights.arrays import Weights, arrays_over
from pulse_registry.weights.cell_space import Geometry, Group

WINDOW_BYTES = 256 << 20
"""Of a streamed window; two of them are on the device. Each takes a link of 55 GB/s some 5 ms."""


class ShadowStorage(Protocol):
    """A shadow's cells.

    Attributes:
        windows: the groups of each window, in flat order within a cell width.
    """

    windows: tuple[TileTable, ...]

    def lent(self, number: int, *, write: bool = False) -> AbstractContextManager[Tiling]:
        """Lend a window's cells on the device, in the block's order on the stream; with ``write``, keep what it did."""
        ...

    def read(self, group: Group) -> torch.Tensor:
        """Return a copy of a group's cells, on the device or in host memory."""
        ...

    def destination(self) -> Destination:
        """Return the cells as what a pull changes."""
        ...


class ResidentStorage:
    """Cells in device memory."""

    def __init__(self, geometry: Geometry, stream: DeviceStream) -> None:
        """Allocate them."""
        self.windows = tile_tables(geometry, stream.device)
        self._geometry = geometry
        self._stream = stream
        with stream.work():
            self._cells = empty_cells(geometry, stream.device)
            for table in self.windows:
                stream.keep(table.tiles.tables)
            self._tilings = [table.tiles.over(self._cells) for table in self.windows]

    def lent(self, number: int, *, write: bool = False) -> AbstractContextManager[Tiling]:
        """Lend a window; what is written stays."""
        return nullcontext(self._tilings[number])

    def read(self, group: Group) -> torch.Tensor:
        """Return a copy of a group's cells, on the device."""
        return torch.cat(spans_of(group, self._cells))

    def destination(self) -> DeviceDestination:
        """Return the cells as what a pull changes: on this stream, which so knows of all that is done to them."""
        return DeviceDestination(self._geometry, self._cells, self._stream)


class StreamedStorage:
    """Cells in pinned host memory: a device with no room for them needs two windows."""

    def __init__(self, geometry: Geometry, stream: DeviceStream, host: Callable[[Weights], HostDestination]) -> None:
        """Allocate them; ``host`` makes the target of weights in host memory."""
        self.windows = tuple(w for table in tile_tables(geometry, stream.device) for w in table.batches(WINDOW_BYTES))
        self._stream = stream
        self._copies = DeviceStream(stream.device)
        self._host = host
        self._memory = pinned_bytes(geometry.nbytes, stream.device)
        starts, at = {}, 0
        for group in geometry.groups:
            starts[group.number] = at
            at += group.cells * group.cell_type.width
        self._starts = starts
        self._weights = Weights(geometry, arrays_over(geometry, self._memory.numpy()))
        most = max((self._bytes(number)[1] for number in range(len(self.windows))), default=0)
        with self._copies.work():
            self._buffers = [torch.empty(most, dtype=torch.uint8, device=stream.device) for _ in range(2)]
        stream.keep(self._buffers)
        for window in self.windows:
            stream.keep(window.tiles.tables)
        self._ahead: int | None = None  # the window that the other buffer is being filled with

    @contextmanager
    def lent(self, number: int, *, write: bool = False) -> Iterator[Tiling]:
        """Lend a window from one of the buffers, while the next one comes into the other."""
        begin, size = self._bytes(number)
        buffer = self._buffers[number % 2][:size]
        if self._ahead != number:
            self._fetch(number)
        self._stream.follow(self._copies)
        self._ahead = None
        if number + 1 < len(self.windows):
            self._fetch(number + 1)
            self._ahead = number + 1
        tiles = self.windows[number].tiles
        yield tiles.packed(buffer.view(CELL_DTYPES[tiles.width]))
        if write:
            self._memory[begin : begin + size].copy_(buffer, non_blocking=True)
            self._stream.wait()

    def read(self, group: Group) -> torch.Tensor:
        """Return a copy of a group's cells, in host memory."""
        begin, dtype = self._starts[group.number], CELL_DTYPES[group.cell_type.width]
        return self._memory[begin : begin + group.cells * group.cell_type.width].clone().view(dtype)

    def destination(self) -> HostDestination:
        """Return the cells as what a pull changes, in host memory."""
        self._ahead = None
        return self._host(self._weights)

    def _bytes(self, number: int) -> tuple[int, int]:
        """Return where a window begins in memory, and how many bytes it has."""
        groups = self.windows[number].groups
        return self._starts[groups[0].number], sum(g.cells * g.cell_type.width for g in groups)

    def _fetch(self, number: int) -> None:
        begin, size = self._bytes(number)
        self._copies.follow(self._stream)  # behind all that used the buffer before
        with self._copies.work():
            self._buffers[number % 2][:size].copy_(self._memory[begin : begin + size], non_blocking=True)
