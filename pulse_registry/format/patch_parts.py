"""Parts of a patch: the objects in which the coded groups of a large layout lie, beside the head that names them all.

Part k holds the groups 64 k to 64 k + 63, as far as they change, end to end. So who needs some groups reads some parts,
and writers need not share an object; the head and the parts, end to end, are the patch in one object.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from blake3 import blake3

from pulse_registry.format import keys
from pulse_registry.format.directory import Column, Directory
from pulse_registry.format.patch_head import committed_head
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import ObjectRef, PatchRef

PART_GROUPS: Final = 64
"""Groups of a part. A patch of a layout that has no more of them is one object."""


def in_parts(geometry: Geometry) -> bool:
    """Tell whether the patches of a layout are written in parts."""
    return len(geometry.groups) > PART_GROUPS


def part_of(group: int) -> int:
    """Return the number of the part that holds a group."""
    return group // PART_GROUPS


def key_of_patch(geometry: Geometry, base: int, target: int, write_id: str) -> str:
    """Return the key by which a record names the patch ``base -> target`` of a layout that one write makes."""
    name = keys.patch_head_key if in_parts(geometry) else keys.patch_key
    return name(base, target, write_id)


@dataclass(frozen=True, slots=True)
class PatchPart:
    """One part of a patch, as its checked head says: the entries ``rows`` of the directory, end to end.

    ``blake3`` tells it from all other objects, and is no hash of its bytes: these are checked group by group.
    """

    key: str
    size: int
    blake3: str
    rows: range
    directory: Directory

    def pieces(self) -> Iterator[tuple[int, str]]:
        """Yield the size and the BLAKE3 of each coded group, in order."""
        for row in self.rows:
            yield int(self.directory.sizes[row]), self.directory.hash(row).hex()


Stored: TypeAlias = ObjectRef | PatchPart
"""What is said of a stored object's bytes: by a record, or by the checked head of a patch."""


def pieces_of(stored: Stored) -> Iterator[tuple[int, str]]:
    """Yield the size and the BLAKE3 of each piece that has one, end to end: the object is whole if all fit."""
    if isinstance(stored, PatchPart):
        return stored.pieces()
    return iter([(stored.size, stored.blake3)])


def parts_in(ref: PatchRef, head: bytes) -> Iterator[PatchPart]:
    """Yield the parts of a patch, in order, as its head says; nothing of a patch in one object.

    Raises:
        CorruptObject: the head is not the one that was committed, or breaks the format.
        UnsupportedFormat: written by another release.
    """
    return Places(ref, committed_head(ref, head)[1]).parts()


class Places:
    """Where the coded groups of a patch lie, by their rows in the directory: in which object, and where in it."""

    def __init__(self, ref: PatchRef, directory: Directory) -> None:
        self._ref = ref
        self._directory = directory
        self._parts: Column | None = None if ref.parts is None else directory.groups // PART_GROUPS
        stops: Column = np.cumsum(directory.sizes)
        if self._parts is None:
            self._stops: Column = ref.head_size + stops
        else:
            first = np.searchsorted(self._parts, self._parts)  # for each row, that with which its part begins
            self._stops = stops - (stops - directory.sizes)[first]

    def key(self, row: int) -> str:
        """Return the key of the object that holds a group."""
        key = self._ref.object.key
        return key if self._parts is None else keys.part_key(key, int(self._parts[row]))

    def place(self, row: int) -> range:
        """Return where in its object a group lies."""
        stop = int(self._stops[row])
        return range(stop - int(self._directory.sizes[row]), stop)

    def at_hand(self, nbytes: int) -> range:
        """Return the rows that lie in the first bytes of the object that holds the head."""
        return range(int(np.searchsorted(self._stops, nbytes, side="right")) if self._parts is None else 0)

    def runs(self, rows: Column, nbytes: int) -> Iterator[range]:
        """Cut rows, which rise, where others lie between them, where a part ends, and where so many bytes are over."""
        apart = np.diff(rows) != 1
        if self._parts is not None:
            apart |= np.diff(self._parts[rows]) != 0
        cuts = (np.flatnonzero(apart) + 1).tolist()
        for begin, end in pairwise([0, *cuts, len(rows)] if len(rows) else []):
            row, last = int(rows[begin]), int(rows[end - 1]) + 1
            while row < last:
                within = int(np.searchsorted(self._stops[row:last], self.place(row).start + nbytes, side="right"))
                yield range(row, row + max(1, within))
                row += max(1, within)

    def parts(self) -> Iterator[PatchPart]:
        """Yield the parts that have groups, in order; none of a patch in one object."""
        if self._parts is None or not len(self._parts):
            return
        cuts = (np.flatnonzero(np.diff(self._parts)) + 1).tolist()
        for begin, end in pairwise([0, *cuts, len(self._parts)]):
            name = f"{self._ref.head_blake3}/{int(self._parts[begin])}".encode()
            size = int(self._stops[end - 1])
            yield PatchPart(self.key(begin), size, blake3(name).hexdigest(), range(begin, end), self._directory)
