"""The shards of a delta being written: frames one after the other, each named with its tensor's checksum."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.format.safetensors import header_bytes, tensor_entry

SHARD_BYTES = 1 << 30
"""A shard takes frames until it is at least this large: readers take a shard into memory whole."""


@dataclass(slots=True)
class _Part:
    """A shard's frames, in a file without a header: that one is known when the last of them is."""

    path: Path
    file: BinaryIO
    nbytes: int = 0
    frames: list[tuple[str, int, int]] = field(default_factory=list)
    checksums: dict[str, str] = field(default_factory=dict)


class DeltaShards:
    """Takes frames, then makes the shards of them. A context manager that closes its files."""

    def __init__(self, folder: Path, files: FileOperations, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder, self._files, self._limit = folder, files, shard_bytes
        self._parts: list[_Part] = []

    def add(self, name: str, frame: bytes, checksum: str) -> None:
        """Take a tensor's frame, and the checksum of its new bytes."""
        if not self._parts or self._parts[-1].nbytes >= self._limit:
            path = self._folder / f"{len(self._parts)}.frames"
            self._parts.append(_Part(path, path.open("x+b")))
        part = self._parts[-1]
        part.file.write(frame)
        part.frames.append((name, part.nbytes, part.nbytes + len(frame)))
        part.checksums[name] = checksum
        part.nbytes += len(frame)

    def finish(self) -> dict[str, str]:
        """Write the shards, durably, and return which of them holds which tensor."""
        weight_map: dict[str, str] = {}
        for number, part in enumerate(self._parts, 1):
            name = f"model-{number:05d}-of-{len(self._parts):05d}.safetensors"
            entries = {tensor: tensor_entry("U8", [stop - start], start, stop) for tensor, start, stop in part.frames}
            with (self._folder / name).open("xb") as shard:
                shard.write(header_bytes({"__metadata__": part.checksums, **entries}))
                part.file.seek(0)
                shutil.copyfileobj(part.file, shard, 1 << 20)
            self._files.sync(self._folder / name)
            part.file.close()
            self._files.remove(part.path)
            weight_map |= dict.fromkeys(entries, name)
        return weight_map

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for part in self._parts:
            part.file.close()
