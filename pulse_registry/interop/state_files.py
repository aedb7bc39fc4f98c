"""All cells of one version in files of our own, mapped: the memory that they take is the file cache's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.checkpoint.shards import MappedShards
from pulse_registry.format.keyframe import Shard, shard_of, shards_of
from pulse_registry.interop.checksum import Bytes, Checksum
from pulse_registry.interop.frames import PIECE
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.file_tensor import FileTensor


class StateFiles:
    """The shards of a checkpoint that nobody else sees yet. A context manager that lets go of the maps.

    Attributes:
        folder: where they are.
        geometry: of the layout.
        shards: what they are; with ``checksum``, their headers have room for one of each tensor.
        tensors: writable arrays over them, by name, tied names included.
    """

    def __init__(
        self, folder: Path, geometry: Geometry, files: FileOperations, checksum: Checksum | None = None
    ) -> None:
        """Make the files; they hold nothing in particular.

        Raises:
            OSError: they can't be made.
        """
        self.folder, self.geometry, self._files = folder, geometry, files
        self.shards = [_with_room(geometry, shard, checksum) for shard in shards_of(geometry)]
        made = (files.create(folder / shard.name, shard.header, shard.nbytes) for shard in self.shards)
        self._mapped = MappedShards(geometry, made, self.shards)
        self.tensors: dict[str, Any] = self._mapped.tensors

    def stored(self) -> Iterator[tuple[str, Bytes]]:
        """Yield names and bytes of the tensors that are stored, in layout order; tied names are left out."""
        for tensor in self.geometry.layout.tensors:
            yield tensor.name, bytes_of(self.tensors[tensor.name])

    def take(self, tensors: Mapping[str, Any]) -> None:
        """Copy all cells from tensors of the layout."""
        for name, cells in self.stored():
            np.copyto(cells, bytes_of(tensors[name]))

    def read(self, tensors: Mapping[str, FileTensor]) -> None:
        """Read all cells from a checkpoint of the layout, once.

        Raises:
            InvalidArgument: a file can't be read, or has become shorter.
        """
        for name, cells in self.stored():
            tensors[name].read_into(0, cells.data)

    def write_checksums(self, checksums: Mapping[str, str]) -> None:
        """Put the tensors' checksums into the room that the headers have for them."""
        for at, shard in enumerate(self.shards):
            names = [tensor.name for tensor in self.geometry.layout.tensors[shard.first : shard.last]]
            about = {name: checksums[name] for name in names}
            whole = shard_of(self.geometry, shard.name, shard.first, shard.last, about)
            self._mapped.write_header(at, whole.header)

    def sync(self) -> None:
        """Make the files durable."""
        self._mapped.flush()
        for shard in self.shards:
            self._files.sync(self.folder / shard.name)

    def release(self) -> None:
        """Let go of the pages; what was written stays in the files."""
        self._mapped.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.tensors = {}
        self._mapped.__exit__(*error)


def bytes_of(array: np.ndarray[Any, Any]) -> Bytes:
    """Return a contiguous tensor's bytes, where they are."""
    return array.reshape(-1).view(np.uint8)


def pieces_of(cells: Bytes) -> Iterator[Bytes]:
    """Yield bytes piece by piece."""
    return (cells[at : at + PIECE] for at in range(0, len(cells), PIECE))


def _with_room(geometry: Geometry, shard: Shard, checksum: Checksum | None) -> Shard:
    if checksum is None:
        return shard
    about = {tensor.name: "0" * checksum.digits for tensor in geometry.layout.tensors[shard.first : shard.last]}
    return shard_of(geometry, shard.name, shard.first, shard.last, about)
