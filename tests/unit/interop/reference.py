"""The common delta format as plainly as it can be said: whole tensors in memory, the safetensors library, no checks."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard
from blake3 import blake3
from safetensors import safe_open
from safetensors.numpy import save_file

INDEX = "model.safetensors.index.json"
CHECKSUMS = {
    "adler32": lambda data: f"{zlib.adler32(data):08x}",
    "xxh3-128": lambda data: xxhash.xxh3_128_hexdigest(data),
    "blake3": lambda data: blake3(data).hexdigest(),
}
State = dict[str, bytes]
"""Each tensor's bytes."""


def frame(encoding: str, old: bytes, new: bytes) -> bytes:
    """Return a tensor's delta."""
    a, b = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    if encoding == "xor":
        return zstandard.ZstdCompressor(level=1).compress((a ^ b).tobytes())
    places = np.flatnonzero(a != b).astype("<u4")
    return zstandard.ZstdCompressor(level=1).compress(
        np.array([len(places)], "<u4").tobytes() + places.tobytes() + b[places].tobytes()
    )


def applied(encoding: str, frame_: bytes, old: bytes) -> bytes:
    """Return a tensor's bytes after its delta."""
    data = np.frombuffer(zstandard.ZstdDecompressor().decompressobj().decompress(frame_), np.uint8)
    cells = np.frombuffer(old, np.uint8).copy()
    if encoding == "xor":
        return (cells ^ data).tobytes()
    count = int(data[:4].view("<u4")[0])
    cells[data[4 : 4 + 4 * count].view("<u4")] = data[4 + 4 * count :]
    return cells.tobytes()


def write_delta(
    folder: Path,
    old: State,
    new: State,
    *,
    version: Any = "000001",
    base: Any = "000000",
    encoding: str = "xor",
    checksum: str = "adler32",
    shard: str = "model-00000-of-00001.safetensors",
    **metadata: Any,
) -> Path:
    """Write a delta's folder as a trainer does, in one shard."""
    folder.mkdir(parents=True)
    changed = [name for name in new if new[name] != old[name]]
    frames = {name: np.frombuffer(frame(encoding, old[name], new[name]), np.uint8) for name in changed}
    if frames:
        save_file(frames, folder / shard, {name: CHECKSUMS[checksum](new[name]) for name in changed})
    about = {
        "version": version,
        "base_version": base,
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": checksum,
        **metadata,
    }
    (folder / INDEX).write_text(json.dumps({"metadata": about, "weight_map": dict.fromkeys(changed, shard)}))
    return folder


def read_delta(folder: Path, old: State) -> State:
    """Return the state after a delta's folder, checked by its checksums."""
    index = json.loads((folder / INDEX).read_bytes())
    about, new = index["metadata"], dict(old)
    for shard in sorted(folder.glob("*.safetensors")):
        with safe_open(shard, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                assert index["weight_map"].pop(name) == shard.name
                new[name] = applied(about["delta_encoding"], file.get_tensor(name).tobytes(), old[name])
                assert file.metadata()[name] == CHECKSUMS[about["checksum_format"]](new[name])
    assert not index["weight_map"]
    return new


def state_of(tensors: Mapping[str, np.ndarray[Any, Any]]) -> State:
    """Return the bytes of arrays."""
    return {name: np.ascontiguousarray(array).tobytes() for name, array in tensors.items()}
