"""An attacker's tools: change stored bytes, and make every hash on the way to them fit again."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from typing import Any

from blake3 import blake3

from pulse_kernels import GROUP_BYTES
from pulse_registry.format import keys
from pulse_registry.log.fold import sealed_hash
from pulse_schemas import CommitRecord, canonical_json, unseal_record
from tests.support.records import DictStore

CELLS = 1000
ENTRY = struct.Struct("<IIII32s4Q")
"""Of a patch's directory, as docs/spec.md has it."""
Edit = Callable[[dict[str, Any]], Any]


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
        self.entries = [list(fields) for fields in ENTRY.iter_unpack(body[:directory])]
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
        directory, groups = b"".join(ENTRY.pack(*entry) for entry in self.entries), b"".join(self.groups)
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
    """A coded group of one chunk taken apart: classes, tables, sizes of chunks and words."""

    def __init__(self, data: bytes) -> None:
        n_classes, self.first, size = struct.unpack_from("<BBH", data)
        at = 4 + 5 * n_classes
        self.classes = [list(fields) for fields in struct.iter_unpack("<IB", data[4:at])]
        stored, self.tables = data[at : at + size], list[bytes]()
        while stored:
            end = 2 + (5 * stored[1] + 7) // 8
            self.tables.append(stored[:end])
            stored = stored[end:]
        at += size
        self.padding = bytes(at % 2)
        numbers = [word for (word,) in struct.iter_unpack("<H", data[at + at % 2 :])]
        self.sizes, self.words = numbers[:1], numbers[1:]
        self.n_classes: int | None = None
        self.tables_size: int | None = None

    def pack(self) -> bytes:
        """Put the parts together; what is not overridden fits."""
        n_classes = len(self.classes) if self.n_classes is None else self.n_classes
        tables = b"".join(self.tables)
        head = struct.pack("<BBH", n_classes, self.first, len(tables) if self.tables_size is None else self.tables_size)
        classes = b"".join(struct.pack("<IB", *entry) for entry in self.classes)
        numbers = struct.pack(f"<{len(self.sizes) + len(self.words)}H", *self.sizes, *self.words)
        return b"".join((head, classes, tables, self.padding, numbers))


assert GROUP_BYTES >= 2 * CELLS
