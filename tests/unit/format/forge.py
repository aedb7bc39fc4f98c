"""Patches made by hand, from the text of the format: right ones, and ones that break a single rule."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from blake3 import blake3

from pulse_kernels import Backend, get_backend
from pulse_registry.format.patch_coding import CoderChoice, PatchFile
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import read_model
from pulse_schemas import ObjectRef, PatchRef, canonical_json
from tests.support.groups import geometry_of, mixed_model
from tests.support.patches import encode_patch

KEY = "objects/patch/a.safetensors"
ENTRY = struct.Struct("<IIII32s4Q")


@dataclass(frozen=True)
class States:
    """Two versions of a model in small groups, and the changes between them."""

    geometry: Geometry
    old: Mapping[str, np.ndarray[Any, Any]]
    new: Mapping[str, np.ndarray[Any, Any]]

    def weights(self, which: str = "old") -> Weights:
        """Return a copy of one of the versions."""
        model = {name: array.copy() for name, array in getattr(self, which).items()}
        return Weights.into(self.geometry, read_model(model))

    def changes(self, backend: Backend | None = None) -> list[SparseUpdate]:
        backend, old, new = backend or get_backend("numba"), self.weights("old"), self.weights("new")
        return [
            SparseUpdate(group, *backend.diff(new.copy_of(group), old.copy_of(group))) for group in self.geometry.groups
        ]

    def encode(self, coder: CoderChoice = "gap", backend: Backend | None = None, **options: Any) -> PatchFile:
        backend, old = backend or get_backend("numba"), self.weights("old")
        return encode_patch(
            backend, self.geometry, 4, 5, self.changes(backend), coder=coder, base_cells=old.spans, **options
        )


def two_states() -> States:
    """Return two versions of a mixed model: of its 7 groups, number 3 stays as it is."""
    old, new = mixed_model(), mixed_model()
    geometry = geometry_of(old)
    assert len(geometry.groups) == 7
    weights = Weights.into(geometry, read_model(new))
    for group in geometry.groups:
        if group.number == 3:
            continue
        cells = weights.copy_of(group)
        cells[::3] ^= 1
        cells[-1] ^= cells.dtype.type(1 << (8 * cells.itemsize - 1))
        weights.fill(group, cells)
    return States(geometry, old, new)


def joined(file: PatchFile) -> bytes:
    return b"".join((file.head, *file.groups))


@dataclass(frozen=True)
class Forged:
    """The parts of a patch object, to be changed one at a time and put together with all hashes right again."""

    fields: dict[str, Any]
    entries: tuple[tuple[Any, ...], ...]
    groups: tuple[bytes, ...]
    header: dict[str, Any] | None = None

    def entry(self, number: int, **changes: Any) -> Forged:
        """Change fields of one directory entry."""
        names = ("group", "changed", "size", "coder", "blake3")
        entry = list(self.entries[number])
        for name, value in changes.items():
            entry[names.index(name)] = value
        return replace(self, entries=(*self.entries[:number], tuple(entry), *self.entries[number + 1 :]))

    def head(self, **changes: Any) -> Forged:
        """Change fields of the patch's own JSON."""
        return replace(self, fields={**self.fields, **changes})

    def directory(self) -> bytes:
        return b"".join(ENTRY.pack(*entry) for entry in self.entries)

    def document(self) -> dict[str, Any]:
        directory, data = len(self.directory()), sum(map(len, self.groups))
        return {
            "__metadata__": {"pulse": canonical_json(self.fields).decode()},
            "directory": {"dtype": "U8", "shape": [directory], "data_offsets": [0, directory]},
            "groups": {"dtype": "U8", "shape": [data], "data_offsets": [directory, directory + data]},
        }

    def build(self, text: bytes | None = None) -> tuple[bytes, bytes]:
        """Return (head, all bytes); ``text`` replaces the JSON of the safetensors header."""
        if text is None:
            text = json.dumps(self.document(), separators=(",", ":"), ensure_ascii=False).encode()
            text += b" " * (-len(text) % 8)
        head = struct.pack("<Q", len(text)) + text + self.directory()
        return head, head + b"".join(self.groups)


def ref_to(head: bytes, data: bytes, **changes: Any) -> PatchRef:
    """Return a reference that fits the bytes, but for the changes."""
    fields = {
        "base": 4,
        "target": 5,
        "coder": "gap",
        "changed": 36,
        "object": ObjectRef(key=KEY, size=len(data), blake3=blake3(data).hexdigest()),
        "head_size": len(head),
        "head_blake3": blake3(head).hexdigest(),
    }
    return PatchRef(**(fields | changes))


def forged(states: States, groups: Sequence[bytes], entries: Sequence[tuple[Any, ...]]) -> Forged:
    fields = {
        "format": "pulse-patch/2",
        "layout": states.geometry.id,
        "base": 4,
        "target": 5,
        "changed": sum(entry[1] for entry in entries),
        "groups": len(entries),
    }
    return Forged(fields, tuple(entries), tuple(groups))
