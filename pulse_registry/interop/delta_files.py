"""The shards of a folder in the common delta format, read: nothing in them is believed before it is checked."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pulse_registry.errors import CorruptObject
from pulse_registry.format.safetensors import Header, HeaderFault, head_of, parse_head
from pulse_registry.interop.delta_index import DeltaIndex
from pulse_registry.process.open_files import reserve
from pulse_registry.process.temporary_folder import temporary_folder
from pulse_registry.quoting import quoted
from pulse_registry.weights.file_tensor import SourceFile

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Frame:
    """A changed tensor's frame, where it lies, and the checksum that the tensor then has."""

    tensor: str
    data: memoryview
    checksum: str


@contextmanager
def frames_of(folder: Path, index: DeltaIndex, spool: Path | None = None) -> Iterator[list[Frame]]:
    """Copy a delta's shards to where nobody else writes, and yield the frames of all tensors that changed.

    Args:
        folder: with the delta.
        index: of it.
        spool: folder for the copies, which have no names; None for the system's temporary folder.

    Raises:
        CorruptObject: a shard is missing or not whole, or holds other tensors than the index says.
        OSError: it can't be read, or the disk does not take a copy.
    """
    maps: list[mmap.mmap] = []
    frames: list[Frame] = []
    try:
        for shard in sorted(set(index.weight_map.values())):
            path = folder / shard
            file = _opened(path)
            header = _header(file, index.weight_map)
            mapped = _copied(file, spool)
            maps.append(mapped)
            view = memoryview(mapped)
            for name, place in header.tensors.items():
                if place.dtype != "U8" or len(place.shape) != 1:
                    raise CorruptObject(
                        f"{path}: tensor {quoted(name)} is no frame: {quoted(list(place.shape))} of {place.dtype}"
                    )
                data = view[header.nbytes + place.start : header.nbytes + place.stop]
                frames.append(Frame(name, data, header.metadata[name]))
        yield frames
    finally:
        for frame in frames:
            frame.data.release()
        del frames[:]
        maps.clear()  # they go with the last view of them


def checksums_of(folder: Path, index: DeltaIndex) -> dict[str, str]:
    """Return the checksums in the shards of a whole checkpoint; raises as ``frames_of``."""
    found: dict[str, str] = {}
    for shard in sorted(set(index.weight_map.values())):
        checksums = _header(_opened(folder / shard), index.weight_map).metadata
        found |= {name: checksums[name] for name, place in index.weight_map.items() if place == shard}
    return found


def _opened(path: Path) -> SourceFile:
    try:
        file = SourceFile(path)
    except FileNotFoundError as error:
        raise CorruptObject(f"{path} is missing, and the index beside it names it") from error
    if not file.nbytes:
        raise CorruptObject(f"{path} is empty")
    return file


def _copied(file: SourceFile, folder: Path | None) -> mmap.mmap:
    """Return a shard's bytes in a file without a name, mapped: they stay what they were when they were read."""
    with tempfile.TemporaryFile(dir=folder or temporary_folder()) as copy:
        reserve(copy.fileno(), file.nbytes)
        buffer = memoryview(bytearray(min(_COPY_BYTES, file.nbytes)))
        for at in range(0, file.nbytes, _COPY_BYTES):
            part = buffer[: file.nbytes - at]
            if not file.read_into(at, part):
                raise CorruptObject(f"{file.path} became shorter while it was read")
            copy.write(part)
        copy.flush()
        return mmap.mmap(copy.fileno(), file.nbytes, access=mmap.ACCESS_READ)


def _header(file: SourceFile, weight_map: Mapping[str, str]) -> Header:
    """Return a shard's head, whose metadata are its tensors' checksums."""
    path = file.path
    try:
        header = parse_head(head_of(file.read, file.nbytes), file.nbytes)
    except HeaderFault as error:
        raise CorruptObject(f"{path} is no whole safetensors file: {error}") from error
    named = {name for name, shard in weight_map.items() if shard == path.name}
    if header.tensors.keys() != named:
        name = min(header.tensors.keys() ^ named)
        where = "its index does not say so" if name in header.tensors else "it does not, as its index says"
        raise CorruptObject(f"{path} holds tensor {quoted(name)}, and {where}")
    for name in named:
        if name not in header.metadata:
            raise CorruptObject(f"{path} has no checksum of tensor {quoted(name)}")
    return header
