"""Sharded patch: changes go to the homes of their groups, are coded there, and stored by all ranks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final

import numpy as np

from pulse_kernels import Cells
from pulse_registry.context import Context
from pulse_registry.errors import Conflict, CorruptObject
from pulse_registry.format.directory import Directory
from pulse_registry.format.patch_coding import Coded, CoderChoice, PatchFile, class_pays, code_change
from pulse_registry.format.patch_parts import in_parts, key_of_patch
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.peers.peers import COORDINATOR, Peers
from pulse_registry.peers.sums import sum_lanes
from pulse_registry.peers.vote import Attempt
from pulse_registry.push.changed_columns import ChangedColumns
from pulse_registry.push.exchange import Reader, cells_to, to_homes
from pulse_registry.push.shadow import Shadow
from pulse_registry.push.sharded_push import ShardedPush
from pulse_registry.push.upload import store_head, store_parts, store_patch
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.slice_map import SliceMap
from pulse_schemas import PatchRef

_COUNT: Final = np.dtype("<i8")


class ShardedPatch:
    """The patch into a version from the one before, as this rank makes its part of it.

    Its methods are called in their order, each once, on all ranks. What goes wrong on one between two collectives is
    raised by the vote, on all.
    """

    def __init__(
        self, context: Context, peers: Peers, coder: CoderChoice, push: ShardedPush, shadow: Shadow, write_id: str
    ) -> None:
        """Take what is to be stored; no I/O yet.

        Args:
            context: store and threads.
            peers: the ranks.
            coder: how groups are coded.
            push: this rank's part.
            shadow: holds its cells.
            write_id: of the push, the same on all ranks.
        """
        self._context, self._peers, self._coder, self._push = context, peers, coder, push
        self._shadow, self._write_id, self._slices = shadow, write_id, push.prepared.spoken.slices
        self._geometry, self._attempt = push.prepared.geometry, Attempt(peers)
        self._held = Digest()  # what this rank's changes add to the state digest, as it found them
        self._key = key_of_patch(self._geometry, push.version - 1, push.version, write_id)
        self._parted = in_parts(self._geometry)

    def diffed(self) -> list[ChangedColumns]:
        """Return what this rank found changed, by groups of the whole layout."""
        nothing: tuple[list[ChangedColumns], Digest] = ([], Digest())
        changes, self._held = self._attempt.run(self._found, nothing)
        return changes

    def exchange(self, changes: list[ChangedColumns]) -> list[SparseUpdate]:
        """Send changes to the homes of their groups; return what all ranks found of those that are at home here.

        What is sent is taken out of the list.
        """
        return to_homes(self._peers, self._geometry, changes, self._push.prepared.homes, self._attempt)

    def code(self, changes: Sequence[SparseUpdate]) -> list[Coded]:
        """Code the changes of the groups that are at home here; holders send the cells that ``class`` needs."""
        backend, map_, attempt, timeline = self._context.backend, self._context.map_, self._attempt, self._push.timeline
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
            change = by_number[number]
            if not np.array_equal(backend.gather(base, change.index), change.old):  # the coder relies on that
                raise CorruptObject(
                    f"the cells of group {number} that ranks sent are not those that they found changed. Nothing was "
                    "committed"
                )
            made = code_change(backend, change, "class", lambda: nullcontext([base]), timeline)
            old = groups.get(number)
            groups[number] = made if old is None else min(old, made, key=lambda one: len(one.data))

        read = reader(self._shadow, self._slices, self._push.version - 1)
        for number, base in cells_to(self._peers, self._slices, wanted, read, attempt):
            attempt.run(partial(code, number, base), None)
        return [groups[number] for number in sorted(groups)]

    def upload(self, coded: Sequence[Coded]) -> None:
        """Store the parts that are at home here; a patch in one object is the coordinator's, with its head."""
        if not self._parted:
            return
        context, of, timeline = self._context, operator.attrgetter("data"), self._push.timeline
        self._attempt.run(lambda: store_parts(context.store, self._key, coded, of, context.fetchers, timeline), None)

    def vote(self, coded: Sequence[Coded]) -> tuple[PatchRef | None, Digest]:
        """Return, once all ranks have done their part, what it adds to the state digest; with it goes the head.

        Returns:
            What its record says of the patch, at the coordinator; and what it adds to the state digest.

        Raises:
            Conflict: on all ranks: what came to the homes is not what the ranks have found.
            PulseError: on all ranks, what went wrong on one.
        """
        attempt, held = self._attempt, self._held
        directory = attempt.run(lambda: Directory.of(one.entry for one in coded).to_bytes(), b"")
        delta = sum((one.entry.new_sum - one.entry.old_sum for one in coded), Digest())
        lanes = held.lane_0, held.lane_1, delta.lane_0, delta.lane_1
        *found, lane_0, lane_1 = sum_lanes(self._peers, lanes, "delta")
        every = self._peers.gather(directory, "directory")
        attempt.agree("upload")
        if (lane_0, lane_1) != tuple(found):
            raise Conflict(
                f"version {self._push.version}: what was coded is not what the ranks found changed, by their sums. "
                "Nothing was committed; the next push carries the changes"
            )
        here = self._peers.rank == COORDINATOR
        ref = attempt.run(lambda: self._finished(coded, every or ()), None) if here else None
        attempt.agree("head")
        return ref, Digest(lane_0, lane_1)

    def _found(self) -> tuple[list[ChangedColumns], Digest]:
        context, slices, update = self._context, self._slices, self._shadow.listed(self._push.version)
        found = list(context.map_(lambda change: ChangedColumns.of(slices, change, context.backend), update.groups))
        return [columns for columns, _ in found], sum((delta for _, delta in found), Digest())

    def _finished(self, coded: Sequence[Coded], directories: Sequence[bytes]) -> PatchRef:
        """Store the head, or a patch in one object, at the coordinator."""
        context, geometry, version, timeline = self._context, self._geometry, self._push.version, self._push.timeline
        if not self._parted:
            return store_patch(context.store, geometry, version, self._write_id, coded, context.fetchers, timeline)
        with timeline.during("code"):
            joined = Directory.joined(self._key, directories)
            file = PatchFile.of_directory(geometry, version - 1, version, joined)
        store_head(context.store, self._key, file.head, timeline)
        return file.ref(self._key)


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
