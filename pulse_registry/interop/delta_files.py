"""The shards of a folder in the common delta format, read: nothing in them is believed before it is checked."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pulse_registry.errors import CorruptObject
from pulse_registry.interop.delta_index import DeltaIndex
from pulse_registry.quoting import quoted
from pulse_registry.regular_file import map_regular
from pulse_registry.safetensors_header import Header, HeaderFault, head_of, parse_head


@dataclass(frozen=True, slots=True)
class Frame:
    """A changed tensor's frame, where it lies, and the checksum that the tensor then has."""

    tensor: str
    data: memoryview
    checksum: str


@contextmanager
def frames_of(folder: Path, index: DeltaIndex) -> Iterator[list[Frame]]:
    """Map a delta's shards and yield the frames of all tensors that changed.

    Raises:
        CorruptObject: a shard is missing or not whole, or holds other tensors than the index says.
    """
    maps: list[mmap.mmap] = []
    frames: list[Frame] = []
    try:
        for shard in sorted(set(index.weight_map.values())):
            path = folder / shard
            mapped = _mapped(path)
            maps.append(mapped)
            header = _header(path, mapped, index.weight_map)
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
        checksums = _header(folder / shard, _mapped(folder / shard), index.weight_map).metadata
        found |= {name: checksums[name] for name, place in index.weight_map.items() if place == shard}
    return found


def _mapped(path: Path) -> mmap.mmap:
    try:
        mapped = map_regular(path)
    except FileNotFoundError as error:
        raise CorruptObject(f"{path} is missing, and the index beside it names it") from error
    if mapped is None:
        raise CorruptObject(f"{path} is empty")
    return mapped


def _header(path: Path, mapped: mmap.mmap, weight_map: Mapping[str, str]) -> Header:
    """Return a shard's head, whose metadata are its tensors' checksums."""
    try:
        header = parse_head(head_of(lambda start, stop: mapped[start:stop], len(mapped)), len(mapped))
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
