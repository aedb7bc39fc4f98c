"""Pulls of many ranks together: the slices of one model, brought to one version on all ranks or on none.

What a rank can't know of its slices alone, that they are the version that was committed, all ranks know together: their
shares of the state digest add up to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from blake3 import blake3

from pulse_kernels import CELL_TYPES, Backend, Cells
from pulse_registry.errors import BaseMismatch
from pulse_registry.peers.peers import COORDINATOR, Peers
from pulse_registry.peers.shuffle import KEY_BYTES, holders
from pulse_registry.peers.sums import gather_lanes, sum_lanes
from pulse_registry.peers.vote import Attempt
from pulse_registry.process.parallel import Map
from pulse_registry.pull.sliced_cells import SlicedCells
from pulse_registry.pull.sliced_destination import BaseSums
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.slice_map import SliceMap
from pulse_schemas import VersionEntry

Checked = Literal["state", "slices"]
"""What a version was compared with: its state digest, over all cells; or what is stored of the slices, by BLAKE3."""


@dataclass(frozen=True, slots=True)
class Cover:
    """Who answers for which cells.

    Attributes:
        speaks: numbers of this rank's slices whose share it counts: of a slice that several ranks hold, one does.
        complete: whether all ranks together answer for each cell of the layout exactly once.
    """

    speaks: frozenset[int]
    complete: bool


@dataclass(frozen=True, slots=True)
class Found:
    """What one rank has found of its cells.

    Attributes:
        share: what they add to the state digest of the version.
        base: of those that change; None: no patch alone leads to the version.
    """

    share: Digest
    base: BaseSums | None

    @property
    def lanes(self) -> list[int]:
        """All of it, as numbers that all ranks exchange."""
        base = self.base or BaseSums(Digest(), Digest())
        sums = (self.share, base.found, base.committed)
        return [*(lane for one in sums for lane in (one.lane_0, one.lane_1)), int(self.base is not None)]


class Together:
    """The ranks that pull together. Each method is a collective: all ranks call it, in the same order."""

    def __init__(self, peers: Peers) -> None:
        """Take the ranks."""
        self.peers = peers
        self._covers: dict[tuple[bytes, ...], Cover] = {}

    def same_version(self, find: Callable[[], int]) -> int:
        """Return the version that the coordinator finds under a name."""
        attempt = Attempt(self.peers)
        here = self.peers.rank == COORDINATOR
        found = attempt.run(lambda: b"%d" % find() if here else b"", b"")
        said = self.peers.broadcast(found if here else None, "version")
        attempt.agree("version")
        return int(said)

    def cover(self, slices: SliceMap, backend: Backend, map_: Map) -> Cover:
        """Find out who answers for which cells; the layout is the same on all ranks. Costs a pass over them, once."""
        hashes = [_hash(slices, number) for number in range(len(slices.slices))]
        mine = blake3(slices.geometry.id.encode() + b"".join(hashes)).digest(16)
        prints = tuple(self.peers.all_gather(mine, "slices"))
        known = self._covers.get(prints)
        if all(flag == b"1" for flag in self.peers.all_gather(b"1" if known is not None else b"0", "cover known")):
            return self._covers[prints]
        attempt = Attempt(self.peers)
        places = holders(self.peers, hashes, attempt, "boxes")
        attempt.agree("boxes")
        speaks = frozenset(one.number for one, (place, _) in zip(slices.slices, places, strict=True) if place == 0)
        made = Cover(speaks, covers(self.peers, slices, speaks, backend, map_))
        self._covers = {prints: made}  # one model at a time: who asks for two in turns pays each time
        return made

    def check(self, found: Found, cover: Cover, entry: VersionEntry, look: Callable[[], None]) -> Checked:
        """Compare what all ranks have found with what was committed.

        Args:
            found: by this rank.
            cover: who answers for what.
            entry: the version, the same on all ranks.
            look: passes over this rank's cells where they were left to the sums, and raises if they are not what they
                were. All ranks are asked to if the sums do not tell: where the ranks do not hold each cell once, or do
                not come by the same patch, or where a sum is wrong, to find out whose.

        Raises:
            BaseMismatch: on all ranks: their cells are others.
        """
        every = gather_lanes(self.peers, found.lanes, "share")
        share, before = (sum((Digest(*lanes[at : at + 2]) for lanes in every), Digest()) for at in (0, 2))
        right = share == Digest.parse(entry.digest)
        told = all(lanes[6] and Digest(*lanes[4:6]) == before for lanes in every)
        if not (cover.complete and right and told):
            self.agree(look, "cells")
        if not cover.complete:
            return "slices"
        if not right:
            raise BaseMismatch(
                f"the slices of all ranks together are not version {entry.version}: their state digest would be "
                f"{share.hex()}, {entry.digest} was committed. Nothing was changed; pull with replace=True on all ranks"
            )
        return "state"

    def agree(self, check: Callable[[], None], what: str) -> None:
        """Do a check on each rank; where it fails on one, its error is raised on all."""
        attempt = Attempt(self.peers)
        attempt.run(check, None)
        attempt.agree(what)


def covers(peers: Peers, slices: SliceMap, speaks: frozenset[int] | None, backend: Backend, map_: Map) -> bool:
    """Whether the slices that all ranks answer for are each cell of the layout, exactly once; a collective.

    It compares how many cells there are, and digests of a model of ones: those of the slices must add up to that of the
    layout, of which each rank makes a part. A pass over as many cells as a rank has.

    Args:
        peers: the ranks.
        slices: of this rank.
        speaks: numbers of those that it answers for; None: all.
        backend: computes.
        map_: ``map``, or an executor's.
    """
    share = _ones(slices, speaks, backend, map_)
    cells = sum(one.box.cells for one in slices.slices if speaks is None or one.number in speaks)
    whole = _ones_of(slices.geometry, peers.rank, peers.size, backend, map_)
    lanes = (share.lane_0, share.lane_1, cells, whole.lane_0, whole.lane_1)
    *found, count, lane_0, lane_1 = sum_lanes(peers, lanes, "cover")
    return (*found, count) == (lane_0, lane_1, slices.geometry.cells)


def _hash(slices: SliceMap, number: int) -> bytes:
    one = slices.slices[number]
    return blake3(repr((one.tensor, one.box.shape, one.box.offsets, one.box.sizes)).encode()).digest(KEY_BYTES)


def _ones(slices: SliceMap, speaks: frozenset[int] | None, backend: Backend, map_: Map) -> Digest:
    """Return the digest of cells of ones where this rank's slices are that it answers for."""

    def ones(tensor: int, where: slice) -> Cells:
        return np.ones(where.stop - where.start, CELL_TYPES[slices.local.layout.tensors[tensor].dtype].dtype)

    cells = SlicedCells(slices, ones)
    groups = [slices.geometry.groups[number] for number in slices.groups]
    return sum(map_(lambda group: cells.share(backend, group, speaks), groups), Digest())


def _ones_of(geometry: Geometry, rank: int, ranks: int, backend: Backend, map_: Map) -> Digest:
    """Return this rank's part of the digest of a whole layout of ones: of every ``ranks``-th group."""

    def of(number: int) -> Digest:
        group = geometry.groups[number]
        return Digest(*backend.digest(np.ones(group.cells, group.cell_type.dtype), group.start))

    return sum(map_(of, range(rank, len(geometry.groups), ranks)), Digest())
