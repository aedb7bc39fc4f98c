"""An attacker's tools: change stored bytes, and make every hash on the way to them fit again."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import zstandard
from blake3 import blake3

from pulse_kernels import GROUP_BYTES
from pulse_registry.log import keys
from pulse_registry.log.state import sealed_hash
from pulse_registry.patch import _ENTRY
from pulse_schemas import CommitRecord, canonical_json, unseal_record
from tests.faults.harness import Model, quick
from tests.log.builders import DictStore

CELLS = 3000
Edit = Callable[[dict[str, Any]], None]


def victim(coder: str = "gap") -> tuple[DictStore, Model]:
    """Return a run of two versions, a keyframe and one patch of one group, and the model at the second."""
    rng = np.random.default_rng(7)
    model: Model = {"w": rng.integers(0x3000, 0x4200, CELLS, dtype=np.uint16).view(np.float16)}
    store = DictStore()
    with quick(store, coder=coder, keyframe_share=1e9) as registry:
        registry.push(0, model)
        model["w"].view(np.uint16)[rng.permutation(CELLS)[:200]] += rng.integers(1, 400, 200, dtype=np.uint16)
        registry.push(1, model)
    return store, model


def key_of(store: DictStore, pattern: str) -> str:
    """Return the one key that matches."""
    (found,) = [key for key in store.objects if re.search(pattern, key)]
    return found


def edit_record(store: DictStore, seq: int, edit: Edit) -> None:
    """Change the body of a record, and sign it and all records after it anew."""
    body = json.loads(store.objects[f"run/{keys.record_key(seq)}"])["body"]
    edit(body)
    while True:
        sealed = seal(body)
        store.objects[f"run/{keys.record_key(seq)}"] = sealed
        seq += 1
        following = store.objects.get(f"run/{keys.record_key(seq)}")
        if following is None:
            return
        body = json.loads(following)["body"]
        body["previous"] = sealed_hash(sealed)


def seal(body: dict[str, Any]) -> bytes:
    """Return a sealed document of any body, valid or not."""
    content = canonical_json(body)
    return b'{"blake3":"' + blake3(content).hexdigest().encode() + b'","body":' + content + b"}"


def last_commit(store: DictStore) -> int:
    """Return the seq of the record of version 1."""
    seqs = [
        seq
        for seq in range(100)
        if (sealed := store.objects.get(f"run/{keys.record_key(seq)}"))
        and isinstance(record := unseal_record(sealed), CommitRecord)
        and record.version == 1
    ]
    return seqs[0]


class PatchParts:
    """A stored patch taken apart: change any part, then ``sign`` it."""

    def __init__(self, store: DictStore) -> None:
        self.store = store
        self.key = key_of(store, "objects/patch")
        data = store.objects[self.key]
        (length,) = struct.unpack_from("<Q", data)
        self.document: dict[str, Any] = json.loads(data[8 : 8 + length])
        self.pulse: dict[str, Any] = json.loads(self.document["__metadata__"]["pulse"])
        directory = self.document["directory"]["data_offsets"][1]
        body = data[8 + length :]
        self.entries = [list(fields) for fields in _ENTRY.iter_unpack(body[:directory])]
        self.groups: list[bytes] = []
        at = directory
        for entry in self.entries:
            self.groups.append(body[at : at + entry[2]])
            at += entry[2]
        self.raw_header: bytes | None = None
        self.rehash = True

    @property
    def changed(self) -> int:
        """Changed cells that the first group claims."""
        return int(self.entries[0][1])

    def sign(self, *, ref: Edit | None = None) -> None:
        """Store the parts as one patch; sizes and hashes fit, and the record names it."""
        if self.rehash:
            for entry, group in zip(self.entries, self.groups, strict=False):
                entry[2], entry[4] = len(group), blake3(group).digest()
        directory, groups = b"".join(_ENTRY.pack(*entry) for entry in self.entries), b"".join(self.groups)
        self.document["__metadata__"]["pulse"] = canonical_json(self.pulse).decode()
        self.document["directory"] |= {"shape": [len(directory)], "data_offsets": [0, len(directory)]}
        self.document["groups"] |= {
            "shape": [len(groups)],
            "data_offsets": [len(directory), len(directory) + len(groups)],
        }
        header = json.dumps(self.document, separators=(",", ":")).encode() if not self.raw_header else self.raw_header
        header += b" " * (-len(header) % 8)
        head = struct.pack("<Q", len(header)) + header + directory
        self.store.objects[self.key] = head + groups

        def point(body: dict[str, Any]) -> None:
            patch = body["patch"]
            patch["object"] |= {"size": len(head + groups), "blake3": blake3(head + groups).hexdigest()}
            patch |= {"head_size": len(head), "head_blake3": blake3(head).hexdigest(), "changed": self.pulse["changed"]}
            body["changed"] = min(self.pulse["changed"], body["cells"])
            if ref is not None:
                ref(patch)

        edit_record(self.store, last_commit(self.store), point)


class GroupParts:
    """A coded group taken apart: run table, token streams and raw bits."""

    def __init__(self, data: bytes) -> None:
        runs, self.zero, gaps, magnitudes, bits = struct.unpack_from("<HHIII", data)
        at = 16
        self.runs = [list(struct.unpack_from("<BBI", data, at + 6 * n)) for n in range(runs)]
        at += 6 * runs
        frames = []
        for size in (gaps, magnitudes):
            frames.append(data[at : at + size])
            at += size
        self.gap_tokens, self.magnitude_tokens = (zstandard.ZstdDecompressor().decompress(f) for f in frames)
        self.bits = data[at : at + bits]
        self.frames: list[bytes | None] = [None, None]
        self.sizes: list[int | None] = [None, None, None]
        self.n_runs: int | None = None

    def pack(self) -> bytes:
        """Put the parts together; what is not overridden fits."""
        frames = [
            zstandard.ZstdCompressor(level=1).compress(tokens) if frame is None else frame
            for frame, tokens in zip(self.frames, (self.gap_tokens, self.magnitude_tokens), strict=True)
        ]
        given = [len(frames[0]), len(frames[1]), len(self.bits)]
        sizes = [size if size is not None else real for size, real in zip(self.sizes, given, strict=True)]
        n_runs = len(self.runs) if self.n_runs is None else self.n_runs
        head = struct.pack("<HHIII", n_runs, self.zero, *sizes)
        return b"".join((head, *(struct.pack("<BBI", *run) for run in self.runs), *frames, self.bits))


def frame_of(size: int, content: bytes = b"") -> bytes:
    """Return a zstd frame that declares ``size`` bytes of content and holds others, as one raw last block."""
    block = (len(content) << 3 | 1).to_bytes(3, "little") + content
    return b"\x28\xb5\x2f\xfd" + bytes([0xE0]) + size.to_bytes(8, "little") + block


def run_length_frame(size: int) -> bytes:
    """Return a frame of a few bytes that honestly declares and holds ``size`` zeros: a bomb, in blocks of 128 KiB."""
    out = b"\x28\xb5\x2f\xfd" + bytes([0xE0]) + size.to_bytes(8, "little")
    while size:
        part = min(size, 1 << 17)
        size -= part
        out += (part << 3 | 1 << 1 | (not size)).to_bytes(3, "little") + b"\0"
    return out


assert GROUP_BYTES >= 2 * CELLS
