"""The shards of a folder in the common delta format, read: nothing in them is believed before it is checked."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulse_registry.errors import CorruptObject
from pulse_registry.interop.delta_index import DeltaIndex
from pulse_registry.safetensors_header import split_header

_HEADER_LIMIT = 100 << 20
"""The safetensors library's own bound."""


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
            entries, start, checksums = _header(path, mapped, index.weight_map)
            view = memoryview(mapped)
            for name, entry in entries.items():
                first, last = _place(path, name, entry, len(mapped) - start)
                frames.append(Frame(name, view[start + first : start + last], checksums[name]))
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
        mapped = _mapped(folder / shard)
        _, _, checksums = _header(folder / shard, mapped, index.weight_map)
        found |= {name: checksums[name] for name, place in index.weight_map.items() if place == shard}
    return found


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise CorruptObject(f"{path} is missing, and the index beside it names it") from error
    except ValueError as error:  # an empty file can't be mapped
        raise CorruptObject(f"{path} is empty") from error


def _header(path: Path, mapped: mmap.mmap, weight_map: Mapping[str, str]) -> tuple[dict[str, Any], int, dict[str, str]]:
    """Return a shard's entries, where its data begin, and its tensors' checksums."""
    length = int.from_bytes(mapped[:8], "little")
    try:
        document, start = split_header(mapped[: 8 + min(length, len(mapped), _HEADER_LIMIT)])
    except ValueError as error:
        raise CorruptObject(f"{path} is no whole safetensors file: {error}") from error
    checksums = document.pop("__metadata__", None)
    if not isinstance(checksums, dict):
        raise CorruptObject(f"{path} has no checksums")
    named = {name for name, shard in weight_map.items() if shard == path.name}
    if document.keys() != named:
        name = sorted(document.keys() ^ named)[0]
        where = "its index does not say so" if name in document else "it does not, as its index says"
        raise CorruptObject(f"{path} holds tensor {name!r}, and {where}")
    for name in named:
        if not isinstance(checksums.get(name), str):
            raise CorruptObject(f"{path} has no checksum of tensor {name!r}")
    return document, start, checksums


def _place(path: Path, name: str, entry: Any, room: int) -> tuple[int, int]:
    try:
        dtype, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = type(first) is int and type(last) is int and 0 <= first <= last <= room
        if dtype != "U8" or not whole or shape != [last - first]:
            raise ValueError(f"bytes {first} to {last} of {room} are not {shape} of {dtype}")
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptObject(f"{path}: tensor {name!r} is no frame: {error}") from error
    return first, last
