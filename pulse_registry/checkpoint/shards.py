"""The shards of a checkpoint folder as memory maps: the cells are read, and changed, in the files themselves."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pulse_registry.errors import CorruptObject
from pulse_registry.format.keyframe import INDEX_NAME, Shard, check_shards
from pulse_registry.format.safetensors import head_of
from pulse_registry.process.open_files import open_regular, reader_of, size_of
from pulse_registry.weights.arrays import Weights, arrays_over
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.tensors import new_tensors
from pulse_schemas import KeyframeRef, ObjectRef

_NO_HASH = "0" * 64


class MappedShards:
    """All tensors of a checkpoint, in memory maps of its shards. A context manager that lets go of them.

    Attributes:
        tensors: NumPy arrays by name, tied names included.
    """

    def __init__(
        self, geometry: Geometry, files: Iterable[int], shards: Sequence[Shard], *, writable: bool = True
    ) -> None:
        """Map shards that are whole: their headers and sizes are those of ``shards``.

        Args:
            geometry: of the layout.
            files: their descriptors, which are closed; each is asked for when those before it are mapped.
            shards: what they are.
            writable: whether the tensors can be written, and with them the files.

        Raises:
            OSError: a file can't be opened or mapped.
        """
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._maps: list[mmap.mmap] = []
        arrays: list[npt.NDArray[Any]] = []
        for descriptor, shard in zip(files, shards, strict=True):
            try:
                mapped = mmap.mmap(descriptor, shard.nbytes, access=access)
            except ValueError as error:
                raise OSError(errno.EIO, "it became shorter while it was opened", shard.name) from error
            finally:
                os.close(descriptor)
            self._maps.append(mapped)
            memory = np.frombuffer(mapped, np.uint8)
            arrays += arrays_over(geometry, memory, range(shard.first, shard.last), len(shard.header))
        self.tensors: dict[str, Any] = new_tensors(Weights(geometry, arrays), "numpy")

    def write_header(self, shard: int, header: bytes) -> None:
        """Write a shard's header anew, which is as long as it was."""
        self._maps[shard][: len(header)] = header

    def release(self) -> None:
        """Let go of the pages; what was written stays in the files."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)

    def flush(self) -> None:
        """Write what was changed to the files."""
        for mapped in self._maps:
            mapped.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The maps go when the last array of them does.
        self.tensors = {}
        self._maps = []


def shards_in(geometry: Geometry, folder: Path, names: Sequence[str]) -> list[Shard]:
    """Return the shards that the named files are, each checked to hold, by header and size, the layout's next tensors.

    Raises:
        CorruptObject: a file is missing, or its header or size is not right.
    """
    refs, heads = [], []
    for name in names:
        try:
            with open_regular(folder / name) as file:
                size = size_of(file)
                heads.append(head_of(reader_of(file), size))
        except FileNotFoundError as error:
            raise CorruptObject(f"{name} is missing") from error
        refs.append(ObjectRef(key=name, size=size, blake3=_NO_HASH))
    # Only names, sizes and headers are looked at; the cells are proved by their state digest.
    index = ObjectRef(key=INDEX_NAME, size=0, blake3=_NO_HASH)
    return check_shards(geometry, KeyframeRef(version=0, index=index, shards=tuple(refs)), heads)
