"""Changes of a model on a device, in its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from pulse_kernels.triton.apply import locate
from pulse_kernels.triton.changes import Changes
from pulse_kernels.triton.digest import as_lanes, digest_sparse
from pulse_registry.device.parts import Part
from pulse_registry.digest import Digest


@dataclass(frozen=True, slots=True)
class DeviceChanges:
    """What changes of each part of a layout; the weights themselves are not held."""

    parts: tuple[Changes, ...]

    @property
    def changed(self) -> int:
        """Cells that differ."""
        return sum(map(len, self.parts))

    @property
    def nbytes(self) -> int:
        """Bytes of device memory."""
        return sum(changes.nbytes for changes in self.parts)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What an application reads."""
        return tuple(t for c in self.parts for t in (c.index, c.old, c.new, c.tile_offsets))


def reversed_(changes: Changes) -> Changes:
    """Return the way back."""
    return replace(changes, old=changes.new, new=changes.old)


def sums_of(changes: Changes) -> list[tuple[Digest, Digest]]:
    """Return the sums of h over the old and over the new cells, group by group. Waits for the device."""
    return [(Digest(*lanes[:2]), Digest(*lanes[2:])) for lanes in as_lanes(digest_sparse(changes))]


def cut(changes: Changes, whole: Part, part: Part) -> Changes:
    """Return what changes of some consecutive groups of a part."""
    if part is whole:
        return changes
    first = next(k for k, group in enumerate(whole.groups) if group.number == part.groups[0].number)
    host = changes.host_offsets[first : first + len(part.groups) + 1]
    begin, end = int(host[0]), int(host[-1])
    index, old, new = (part_of[begin:end] for part_of in (changes.index, changes.old, changes.new))
    group_offsets = changes.group_offsets[first : first + len(part.groups) + 1] - begin
    return Changes(part.tiles, index, old, new, locate(part.tiles, index, group_offsets), group_offsets, host - begin)


def joined(whole: Part, parts: list[Changes]) -> Changes:
    """Put the changes of consecutive groups, which make up a part, end to end."""
    if len(parts) == 1:
        return parts[0]
    index, old, new = (torch.cat([getattr(c, name) for c in parts]) for name in ("index", "old", "new"))
    host, device_offsets, before = [parts[0].host_offsets[:1]], [parts[0].group_offsets[:1]], 0
    for changes in parts:
        host.append(changes.host_offsets[1:] + before)
        device_offsets.append(changes.group_offsets[1:] + before)
        before += len(changes)
    group_offsets = torch.cat(device_offsets)
    tiles = whole.tiles
    return Changes(tiles, index, old, new, locate(tiles, index, group_offsets), group_offsets, np.concatenate(host))
