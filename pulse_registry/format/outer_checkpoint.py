"""The checkpoint of outer rounds: float32 weights and momentum, beside the BF16 weights of the round's version.

Its head names every group by size and BLAKE3; each group is an object of its own, so that memory is bounded by one, and
the ranks of a sharded model need not share one (docs/spec.md, 5.9).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from blake3 import blake3

from pulse_kernels.format.outer_state import most_state_bytes
from pulse_registry.errors import CorruptObject
from pulse_registry.format.directory import Directory, Entry
from pulse_registry.format.patch_head import head_bytes, most_head_bytes, read_container
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from pulse_schemas.heads import CheckpointHead
from pulse_schemas.outer import CheckpointRecord


@dataclass(frozen=True, slots=True)
class CheckpointGroups:
    """The head of a checkpoint, checked against its record and the layout.

    Attributes:
        head: what it says of itself.
        entries: of the groups that were touched, by number; ``old_sum`` is of theta, ``new_sum`` of momentum.
    """

    head: CheckpointHead
    entries: Directory

    @classmethod
    def parse(cls, record: CheckpointRecord, geometry: Geometry, data: bytes) -> Self:
        """Read a head.

        Raises:
            CorruptObject: its bytes are not those that the record names; or it breaks the format, or is of another
                layout.
            UnsupportedFormat: another release wrote it.
        """
        key = record.object.key
        if len(data) != record.object.size or blake3(data).hexdigest() != record.object.blake3:
            raise CorruptObject(f"{key}: its bytes are not those that were recorded")
        head, entries = read_container(key, data, len(data) + record.parts, CheckpointHead)
        if head.layout != geometry.id or head.round != record.round:
            raise CorruptObject(f"{key}: it is not the checkpoint that the record names")
        cells = geometry.groups.cells
        if int(entries.groups.max(initial=-1)) >= len(cells):
            raise CorruptObject(f"{key}: the directory names groups that are not of the layout")
        most = np.array([most_state_bytes(count) for count in cells[entries.groups].tolist()], np.int64)
        if np.any(entries.changed > cells[entries.groups]) or np.any(entries.sizes > most) or entries.coder != "gap":
            raise CorruptObject(f"{key}: the directory claims more of a group than it has")
        if int(entries.changed.sum()) != head.changed or np.any(entries.changed == 0):
            raise CorruptObject(f"{key}: the directory does not add up to the object")
        return cls(head, entries)


def told_groups(record: CheckpointRecord, data: bytes) -> Directory:
    """Return which groups a head names, which is the one that a record tells of; checked without the layout.

    Raises:
        CorruptObject: it is another one, or breaks the format.
        UnsupportedFormat: another release wrote it.
    """
    key = record.object.key
    if blake3(data).hexdigest() != record.object.blake3:
        raise CorruptObject(f"{key}: its bytes are not those that were recorded")
    head, entries = read_container(key, data, len(data) + record.parts, CheckpointHead)
    if head.round != record.round:
        raise CorruptObject(f"{key}: it is not the checkpoint that the record names")
    return entries


def most_checkpoint_head(geometry: Geometry) -> int:
    """Return how many bytes a checkpoint's head has at most."""
    return most_head_bytes(geometry)


def group_entry(number: int, touched: int, data: bytes, theta: Digest, momentum: Digest) -> Entry:
    """Return what a head says of a group."""
    return Entry(number, touched, len(data), "gap", blake3(data).digest(), theta, momentum)


def checkpoint_head_bytes(layout: str, base: str, round_: int, entries: list[Entry]) -> bytes:
    """Return the head of the groups that were touched, in group order."""
    directory = Directory.of(entries)
    changed = int(directory.changed.sum())
    head = CheckpointHead(layout=layout, base=base, round=round_, changed=changed, groups=len(directory))
    return head_bytes(head, directory)
