"""Fetching: what a reference names comes back checked against its size and BLAKE3, or as a typed error."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from blake3 import blake3

from pulse_kernels import CELL_TYPES
from pulse_registry.errors import CorruptObject, StoreUnavailable, UnsupportedFormat
from pulse_registry.geometry import Geometry, Group
from pulse_registry.keyframe import check_shards
from pulse_registry.log.keys import layout_key
from pulse_registry.patch import Patch
from pulse_registry.store import LocalFiles, Store
from pulse_registry.weights import Weights
from pulse_schemas import Fault, KeyframeRef, Layout, ObjectRef, PatchRef, SchemaError

CHUNK_BYTES = 8 << 20
"""Keyframes are read and hashed in pieces of this size."""
MAX_CELLS = 2**42
"""A layout with more cells is refused before offsets and groups are made of it."""
Map = Callable[..., Iterator[Any]]


def fetch_layout(store: Store, layout_id: str) -> Layout:
    """Fetch a layout; its id is the hash of its bytes."""
    key = layout_key(layout_id)
    data = store.get(key)
    if blake3(data).hexdigest() != layout_id:
        raise CorruptObject(f"{key}: its bytes do not hash to its name")
    try:
        layout = Layout.parse(data)
    except SchemaError as error:
        kind = UnsupportedFormat if error.fault is Fault.UNSUPPORTED else CorruptObject
        raise kind(f"{key}: {error}") from error
    # A size of 0 counts as 1: an empty tensor's other sizes are bounded too.
    if sum(math.prod(size or 1 for size in tensor.shape) for tensor in layout.tensors) > MAX_CELLS:
        raise CorruptObject(f"{key}: it claims more than {MAX_CELLS} cells")
    return layout


def fetch_patch(store: Store, geometry: Geometry, ref: PatchRef) -> Patch:
    """Fetch a patch and check its head; its groups are checked when they are decoded.

    No more than the committed size is read, whatever lies under the key.
    """
    return Patch.parse(geometry, ref, store.get(ref.object.key, (0, ref.object.size)))


class KeyframeCells:
    """The checked cells of a keyframe, mapped read-only from files; close it to give the files back.

    Pages that were read are given back by ``release``, so that resident memory stays within a few groups.
    """

    def __init__(self, geometry: Geometry, ref: KeyframeRef, files: list[IO[bytes]]) -> None:
        self._files = files
        self._maps = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in files]
        shards = check_shards(geometry, ref, [_header(m) for m in self._maps])
        arrays = []
        self._places: list[tuple[mmap.mmap, int]] = []
        for shard, mapped in zip(shards, self._maps, strict=True):
            at = len(shard.header)
            for number in range(shard.first, shard.last):
                tensor = geometry.layout.tensors[number]
                cells = np.frombuffer(mapped, CELL_TYPES[tensor.dtype].dtype, geometry.sizes[number], at)
                arrays.append(cells.reshape(tensor.shape))
                self._places.append((mapped, at))
                at += geometry.tensor_bytes(number)
        self.weights = Weights(geometry, arrays)

    @classmethod
    def fetch(cls, store: Store, geometry: Geometry, ref: KeyframeRef, map_: Map, spool: Path | None) -> Self:
        """Fetch and check all files; a local store's files are mapped where they are, others are spooled to disk.

        Args:
            store: scoped to the run.
            geometry: of the keyframe's layout.
            ref: what the record says.
            map_: ``map``, or an executor's.
            spool: folder for unnamed temporary files; None for the system's.

        Raises:
            CorruptObject: a file is not what was committed.
            NotFound, StoreUnavailable: as the store.
        """
        index = store.get(ref.index.key, (0, ref.index.size))
        _check_size(ref.index, len(index))
        _check_hash(ref.index, blake3(index).hexdigest())
        files: list[IO[bytes]] = []
        try:
            for shard in ref.shards:
                file = _open_local(store, shard)
                files.append(file if file is not None else _spool(store, shard, map_, spool))
            return cls(geometry, ref, files)
        except BaseException:
            for file in files:
                file.close()
            raise

    def release(self, group: Group) -> None:
        """Let go of the pages of a group that was read."""
        width = group.cell_type.width
        for span in group.spans:
            mapped, at = self._places[span.tensor]
            start = -(-(at + span.start * width) // mmap.PAGESIZE) * mmap.PAGESIZE
            stop = (at + span.stop * width) // mmap.PAGESIZE * mmap.PAGESIZE
            if stop > start:
                mapped.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def close(self) -> None:
        """Close the files; maps go when the last array of them does."""
        for file in self._files:
            file.close()
        self._maps.clear()


def _header(mapped: mmap.mmap) -> bytes:
    # A length field that claims more than the file holds gives a short header, which the check refuses.
    length = int.from_bytes(mapped[:8], "little")
    return mapped[: 8 + min(length, len(mapped))]


def _open_local(store: Store, shard: ObjectRef) -> IO[bytes] | None:
    if not isinstance(store, LocalFiles):
        return None
    path = store.local_path(shard.key)
    if path is None:
        return None
    _check_size(shard, store.size(shard.key))
    file = path.open("rb", buffering=0)
    try:
        hasher, size = blake3(max_threads=blake3.AUTO), 0
        buffer = bytearray(min(CHUNK_BYTES, shard.size))
        while got := file.readinto(buffer):
            hasher.update(memoryview(buffer)[:got])
            size += got
        _check_size(shard, size)
        _check_hash(shard, hasher.hexdigest())
    except BaseException:
        file.close()
        raise
    return file


def _spool(store: Store, shard: ObjectRef, map_: Map, spool: Path | None) -> IO[bytes]:
    _check_size(shard, store.size(shard.key))  # before anything is made that is as long as it says
    hasher = blake3(max_threads=blake3.AUTO)
    ranges = [(at, min(at + CHUNK_BYTES, shard.size)) for at in range(0, shard.size, CHUNK_BYTES)]
    window = 4 * (os.cpu_count() or 1)  # bounds what is in flight: an executor's map starts all that it is given
    with ExitStack() as undo:
        try:
            file = undo.enter_context(tempfile.TemporaryFile(dir=spool))
            for at in range(0, len(ranges), window):
                for chunk in map_(lambda part: store.get(shard.key, part), ranges[at : at + window]):
                    hasher.update(chunk)
                    file.write(chunk)
            file.flush()
        except OSError as error:
            raise StoreUnavailable(
                f"{shard.key}: it can't be kept in {spool or tempfile.gettempdir()} on its way: {error.strerror}; "
                f"it takes {shard.size} bytes there for a while"
            ) from error
        _check_hash(shard, hasher.hexdigest())
        undo.pop_all()
    return file


def _check_size(ref: ObjectRef, size: int) -> None:
    if size != ref.size or not size:
        raise CorruptObject(f"{ref.key}: {size} bytes, {ref.size} were committed")


def _check_hash(ref: ObjectRef, digest: str) -> None:
    if digest != ref.blake3:
        raise CorruptObject(f"{ref.key}: its BLAKE3 is {digest}, {ref.blake3} was committed")
