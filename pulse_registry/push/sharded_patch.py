"""Patches of a sharded model: changes go to the homes of their groups, are coded there, and stored by all ranks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final

import numpy as np

from pulse_kernels import Cells
from pulse_registry.context import Context
from pulse_registry.errors import Conflict
from pulse_registry.format.directory import Column, Directory
from pulse_registry.format.patch_coding import Coded, CoderChoice, PatchFile, class_pays, code_change
from pulse_registry.format.patch_parts import in_parts, key_of_patch, part_of
from pulse_registry.format.sparse_update import HostUpdate, SparseUpdate
from pulse_registry.peers.peers import COORDINATOR, Peers
from pulse_registry.peers.sums import sum_lanes
from pulse_registry.peers.vote import Attempt
from pulse_registry.pull.sliced_update import to_whole
from pulse_registry.push.exchange import Reader, cells_to, to_homes
from pulse_registry.push.shadow import Shadow
from pulse_registry.push.upload import store_head, store_parts, store_patch
from pulse_registry.timeline import Timeline
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.slice_map import SliceMap
from pulse_schemas import PatchRef

_COUNT: Final = np.dtype("<i8")


class ShardedPatches:
    """Makes patches of what all ranks found changed. Each method is a collective."""

    def __init__(self, context: Context, peers: Peers, coder: CoderChoice) -> None:
        """Take the ranks, and how groups are coded."""
        self._context, self._peers, self._coder = context, peers, coder

    def homes(self, slices: SliceMap) -> Sequence[int]:
        """Return the rank of each group: where it is coded, and its part is stored.

        A part is at home where most of its cells are held, if that rank has not its fair share of parts yet; nothing
        that is stored tells where. A patch in one object has all of its groups at the coordinator.
        """
        geometry, peers = slices.geometry, self._peers
        if not in_parts(geometry):
            return [COORDINATOR] * len(geometry.groups)
        every = peers.gather(of_parts(slices).tobytes(), "cells of parts")
        attempt = Attempt(peers)
        ranks = attempt.run(lambda: b"" if every is None else _dealt(every).tobytes(), b"")
        said = peers.broadcast(ranks if every is not None else None, "homes")
        attempt.agree("homes")
        of_part = np.frombuffer(said, _COUNT).tolist()
        return [of_part[part_of(number)] for number in range(len(geometry.groups))]

    def store(
        self,
        shadow: Shadow,
        version: int,
        slices: SliceMap,
        homes: Sequence[int],
        write_id: str,
        timeline: Timeline,
    ) -> tuple[PatchRef | None, Digest]:
        """Store the patch into a version from the one before.

        Returns:
            What its record says of it, at the coordinator; and what it adds to the state digest.

        Raises:
            Conflict: on all ranks: what came to the homes is not what the ranks have found.
            PulseError: on all ranks, what went wrong on one.
        """
        context, attempt, geometry = self._context, Attempt(self._peers), slices.geometry
        nothing: tuple[list[SparseUpdate], Digest] = ([], Digest())
        changes, held = attempt.run(lambda: self._found(slices, shadow.listed(version)), nothing)
        mine = to_homes(self._peers, geometry, changes, homes, attempt)
        coded = self._coded(slices, mine, reader(shadow, slices, version - 1), attempt, timeline)
        key = key_of_patch(geometry, version - 1, version, write_id)
        parted, here = in_parts(geometry), self._peers.rank == COORDINATOR
        if parted:
            of = operator.attrgetter("data")
            attempt.run(lambda: store_parts(context.store, key, coded, of, context.fetchers, timeline), None)
        directory = attempt.run(lambda: Directory.of(one.entry for one in coded).to_bytes(), b"")
        delta = sum((one.entry.new_sum - one.entry.old_sum for one in coded), Digest())
        lanes = held.lane_0, held.lane_1, delta.lane_0, delta.lane_1
        *found, lane_0, lane_1 = sum_lanes(self._peers, lanes, "delta")
        every = self._peers.gather(directory, "directory")
        attempt.agree("upload")
        if (lane_0, lane_1) != tuple(found):
            raise Conflict(
                f"version {version}: what was coded is not what the ranks found changed, by their sums. Nothing was "
                "committed; the next push carries the changes"
            )

        def finish() -> PatchRef:
            if not parted:
                return store_patch(context.store, geometry, version, write_id, coded, context.fetchers, timeline)
            with timeline.during("code"):
                joined = Directory.joined(key, every or ())
                file = PatchFile.of_directory(geometry, version - 1, version, joined)
            store_head(context.store, key, file.head, timeline)
            return file.ref(key)

        ref = attempt.run(finish, None) if here else None
        attempt.agree("head")
        return ref, Digest(lane_0, lane_1)

    def _found(self, slices: SliceMap, update: HostUpdate) -> tuple[list[SparseUpdate], Digest]:
        """Return what this rank found changed, by groups of the whole layout, and what it adds to the state digest."""
        backend = self._context.backend
        changes = [part for change in update.groups for part in to_whole(slices, change)]
        sums = self._context.map_(lambda change: change.sums(backend), changes)
        return changes, sum((new - old for old, new in sums), Digest())

    def _coded(
        self, slices: SliceMap, changes: Sequence[SparseUpdate], read: Reader, attempt: Attempt, timeline: Timeline
    ) -> list[Coded]:
        """Code the changes of the groups that are at home here; holders send the cells that ``class`` needs."""
        backend, map_ = self._context.backend, self._context.map_
        gap: list[Coded] = []
        if self._coder != "class":
            gap = attempt.run(
                lambda: list(map_(lambda one: code_change(backend, one, "gap", None, timeline), changes)), gap
            )
        if self._coder == "gap":
            return gap
        groups = {one.entry.group: one for one in gap}
        asked = [
            one
            for one in changes
            if self._coder == "class"
            or (one.group.number in groups and class_pays(one.group.cells, groups[one.group.number].entry.size))
        ]
        numbers = np.array([one.group.number for one in asked], _COUNT)
        said = self._peers.all_gather(numbers.tobytes(), "groups for class")
        wanted = {rank: np.frombuffer(data, _COUNT).tolist() for rank, data in enumerate(said)}
        by_number = {one.group.number: one for one in asked}

        def code(number: int, base: Cells) -> None:
            made = code_change(backend, by_number[number], "class", lambda: nullcontext([base]), timeline)
            old = groups.get(number)
            groups[number] = made if old is None else min(old, made, key=lambda one: len(one.data))

        for number, base in cells_to(self._peers, slices, wanted, read, attempt):
            attempt.run(partial(code, number, base), None)
        return [groups[number] for number in sorted(groups)]


def of_parts(slices: SliceMap) -> Column:
    """Return how many cells of each part the slices hold."""
    held = np.zeros(part_of(len(slices.geometry.groups) - 1) + 1, _COUNT)
    np.add.at(held, [part_of(number) for number in slices.groups], slices.counts)
    return held


def _dealt(every: Sequence[bytes]) -> Column:
    """Return the rank of each part, from how many of its cells each rank holds."""
    held = np.stack([np.frombuffer(said, _COUNT) for said in every]).T.copy()
    parts, ranks = held.shape
    most, load = -(-parts // ranks), np.zeros(ranks, _COUNT)
    homes = np.zeros(parts, _COUNT)
    for part in range(parts):
        homes[part] = np.where(load < most, held[part], -1).argmax()
        load[homes[part]] += 1
    return homes


def reader(shadow: Shadow, slices: SliceMap, version: int) -> Reader:
    """Return what reads cells of a shadow as they are in a version, by tensor of the local layout."""
    local = slices.local

    def read(tensor: int, where: slice) -> Cells:
        begin = local.tensor_start(tensor)
        start, stop = begin + where.start, begin + where.stop
        found = []
        for number in local.groups.meeting(start, stop):
            group = local.groups[number]
            cells = shadow.cells_at(version, group)
            found.append(cells[max(start - group.start, 0) : stop - group.start])
        return np.concatenate(found)

    return read
