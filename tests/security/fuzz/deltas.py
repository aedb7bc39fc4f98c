"""Targets of the common delta format: the index, a tensor's frame, and a whole folder."""

from __future__ import annotations

import json
import random
import shutil
import struct
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zstandard

from pulse_registry.errors import CorruptObject, UnsupportedFormat
from pulse_registry.interop.delta_files import frames_of
from pulse_registry.interop.delta_index import DeltaIndex, parse_index
from pulse_registry.interop.frames import Encoding, FrameFault, Frames
from tests.security.fuzz.mutation import mutate_bytes, mutate_document
from tests.security.fuzz.target import Target, expect

_FOLDER = Path("weight_v000007")
_SHARD = "model-00001-of-00001.safetensors"
_ENCODINGS = tuple(Encoding)
_CELLS = 300
WORDS = (b'"delta_encoding":"xor"', b'"overwrite"', b"adler32", b"xxh3-128", b'"weight_map":{', b"\\ud800", b'"U8"')


def delta_index_target() -> Target:
    """Return the target of a delta's index."""

    def check(data: bytes) -> bool:
        try:
            index = parse_index(_FOLDER / "model.safetensors.index.json", data)
        except (CorruptObject, UnsupportedFormat):
            return False
        again = parse_index(_FOLDER / "model.safetensors.index.json", _written(index))
        expect(again == index, "an index that is read is written as what it says")
        return True

    return Target("delta-index", check, tuple(map(_encoded, _indexes())), mutate_document, WORDS)


def _written(index: DeltaIndex) -> bytes:
    return index.document().decode("utf-8", "surrogatepass").encode("utf-8", "surrogatepass")


def _encoded(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _indexes() -> list[dict[str, object]]:
    delta = {"version": "000007", "base_version": "000006", "compression_format": "zstd"}
    weight_map = {"a.weight": _SHARD, "b": _SHARD}
    return [
        {"metadata": delta | {"delta_encoding": "xor", "checksum_format": "adler32"}, "weight_map": weight_map},
        {"metadata": delta | {"delta_encoding": "overwrite", "checksum_format": "blake3"}, "weight_map": weight_map},
        {"metadata": {"version": 7, "checksum_format": "xxh3-128", "total_size": 5}, "weight_map": weight_map},
        {"metadata": {}, "weight_map": {}},
    ]


def frame_target() -> Target:
    """Return the target of a tensor's frame; an input is a byte for the encoding, and what is in the frame.

    Behind an even byte the frame itself follows; behind an odd one its plain bytes, which no compressor hides.
    """
    old = np.random.default_rng(3).integers(0, 256, _CELLS, dtype=np.uint8)
    frames, compressor = Frames(64), zstandard.ZstdCompressor(level=1)

    def check(data: bytes) -> bool:
        if not data:
            return False
        encoding = _ENCODINGS[data[0] // 2 % 2]
        frame = compressor.compress(data[1:]) if data[0] % 2 else data[1:]
        cells = old.copy()
        try:
            frames.read(encoding, memoryview(frame), cells)
        except FrameFault:
            return False
        again = old.copy()
        frames.read(encoding, memoryview(frames.write(encoding, old, cells)), again)
        expect(again.tobytes() == cells.tobytes(), "what is read is written as a frame that reads the same")
        return True

    seeds = []
    for number, encoding in enumerate(_ENCODINGS):
        for changed in (0, 1, 20, _CELLS):
            new = old.copy()
            new[:changed] ^= 5
            frame = frames.write(encoding, old, new)
            seeds.append(bytes([2 * number]) + frame)
            seeds.append(bytes([2 * number + 1]) + zstandard.ZstdDecompressor().decompress(frame))
    return Target("delta-frame", check, tuple(seeds), mutate_bytes, (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"), 2048)


def delta_folder_target() -> Target:
    """Return the target of a delta's folder: its index, and behind a zero byte its shard."""
    folder = Path(tempfile.mkdtemp(prefix="pulse-fuzz-delta-"))

    def check(data: bytes) -> bool:
        text, _, shard = data.partition(b"\0")
        try:
            index = parse_index(folder / "model.safetensors.index.json", text)
        except (CorruptObject, UnsupportedFormat):
            return False
        (folder / _SHARD).write_bytes(shard)
        try:
            with frames_of(folder, index) as frames:
                expect({frame.tensor for frame in frames} == set(index.weight_map), "a frame of each tensor")
                expect(sum(frame.data.nbytes for frame in frames) >= 0, "frames lie in the shard")
        except CorruptObject:
            return False
        return True

    weakref.finalize(check, shutil.rmtree, folder, ignore_errors=True)
    return Target("delta-folder", check, tuple(_folders()), _mutate_folder, WORDS)


def _folders() -> list[bytes]:
    made = []
    for index in _indexes()[:3]:
        entries = {"__metadata__": {"a.weight": "00000001", "b": "0" * 32}}
        for at, name in ((0, "a.weight"), (20, "b")):
            entries[name] = {"dtype": "U8", "shape": [20], "data_offsets": [at, at + 20]}  # type: ignore[dict-item]
        header = json.dumps(entries).encode()
        made.append(_encoded(index) + b"\0" + struct.pack("<Q", len(header)) + header + bytes(range(40)))
    return made


def _mutate_folder(data: bytes, rng: random.Random) -> bytes:
    """Change the index, the shard's header, or any bytes."""
    text, joint, shard = data.partition(b"\0")
    choices: tuple[Callable[[], bytes], ...] = (
        lambda: mutate_document(text, rng) + joint + shard,
        lambda: text + joint + mutate_bytes(shard, rng),
        lambda: text + joint + _mutated_header(shard, rng),
        lambda: mutate_bytes(data, rng),
    )
    return rng.choice(choices)()


def _mutated_header(shard: bytes, rng: random.Random) -> bytes:
    length = int.from_bytes(shard[:8], "little")
    header = mutate_document(shard[8 : 8 + length], rng)
    return struct.pack("<Q", len(header)) + header + shard[8 + length :]
