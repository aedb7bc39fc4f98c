"""Tables: the versions, patches and keyframes of a run's state."""

from __future__ import annotations

from typing import Final

from blake3 import blake3

from pulse_registry.log.cow import CowObject
from pulse_registry.log.named_objects import key_violation
from pulse_registry.log.table import Kind, Table
from pulse_schemas import KeyframeRef, PatchRef, VersionEntry

CODERS: Final = ("gap", "class")
"""By their numbers in the column of coders."""
MOST: Final = 2**62
"""A size or a count that no object has is this one: 64 bits have room for it."""


def id_of(name: str) -> int:
    """Return the number by which columns know a name: a key, or a hash. Two names may have one."""
    return int.from_bytes(blake3(name.encode()).digest(8), "big", signed=True)


def _version(entry: VersionEntry) -> tuple[int, ...]:
    return entry.version, entry.seq, entry.step, id_of(entry.layout)


def _patch(patch: PatchRef) -> tuple[int, ...]:
    size, coder = min(patch.size, MOST), CODERS.index(patch.coder)
    return patch.base, patch.target, size, patch.objects, coder, min(patch.changed, MOST), id_of(patch.object.key)


def _keyframe(keyframe: KeyframeRef) -> tuple[int, ...]:
    return keyframe.version, min(keyframe.size, MOST), len(keyframe.shards) + 1


VERSIONS: Final = Kind("versions", VersionEntry, ("version", "seq", "step", "layout"), _version)
PATCHES: Final = Kind(
    "patches", PatchRef, ("base", "target", "nbytes", "objects", "coder", "changed", "key"), _patch, key_violation
)
KEYFRAMES: Final = Kind("keyframes", KeyframeRef, ("version", "nbytes", "objects"), _keyframe, key_violation)


class Tables(CowObject):
    """The tables of one state."""

    def __init__(
        self,
        versions: Table[VersionEntry] | None = None,
        patches: Table[PatchRef] | None = None,
        keyframes: Table[KeyframeRef] | None = None,
    ) -> None:
        """Take tables; None: one without rows."""
        self.versions = Table(VERSIONS) if versions is None else versions
        self.patches = Table(PATCHES) if patches is None else patches
        self.keyframes = Table(KEYFRAMES) if keyframes is None else keyframes

    @property
    def nbytes(self) -> int:
        """Bytes of all rows' JSON; see `Table.nbytes`."""
        return self.versions.nbytes + self.patches.nbytes + self.keyframes.nbytes
