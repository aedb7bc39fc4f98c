"""Keyframes of a sharded model: shard files are dealt to ranks, and holders send each rank the cells of its file."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import numpy as np

from pulse_kernels import Cells
from pulse_registry.context import Context
from pulse_registry.errors import Conflict, InvalidModel, StoreUnavailable
from pulse_registry.format.keyframe import KeyframeForm, Shard, StoredShard, planned_shards, write_index, write_shard
from pulse_registry.format.keys import keyframe_key, layout_key
from pulse_registry.log import NewId
from pulse_registry.log.documents import LAYOUT
from pulse_registry.log.keyframe_due import keyframe_due, keyframe_soon
from pulse_registry.peers.peers import COORDINATOR, Peers
from pulse_registry.peers.sums import sum_lanes
from pulse_registry.peers.vote import Attempt
from pulse_registry.process.open_files import write_all
from pulse_registry.process.temporary_folder import temporary_folder
from pulse_registry.pull.sliced_cells import SlicedCells
from pulse_registry.push.exchange import cells_to
from pulse_registry.push.options import PushOptions
from pulse_registry.push.shadow import Shadow
from pulse_registry.push.sharded_patch import reader
from pulse_registry.push.shared_log import SharedLog
from pulse_registry.store import create
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.slice_map import SliceMap
from pulse_schemas import KeyframeRef, Record

_logger = logging.getLogger(__name__)
_SOON, _LATER = b"+", b"-"


class ShardedKeyframes:
    """Writes keyframes of versions that the shadows of all ranks hold. Each method is a collective."""

    def __init__(self, context: Context, peers: Peers, log: SharedLog, new_id: NewId, options: PushOptions) -> None:
        """Take the ranks."""
        self._context, self._peers, self._log, self._new_id = context, peers, log, new_id
        self._options, self._form = options, KeyframeForm(options.keyframe_coding)

    def store(self, shadow: Shadow, slices: SliceMap, version: int, write_id: str) -> tuple[KeyframeRef | None, Digest]:
        """Store a version's layout and cells.

        Returns:
            What its record says of them, at the coordinator; and the state digest.

        Raises:
            Conflict: on all ranks: the cells that were stored are not those that the ranks hold, by their sums.
            PulseError: on all ranks, what went wrong on one.
        """
        peers, context, attempt, geometry = self._peers, self._context, Attempt(self._peers), slices.geometry
        read = reader(shadow, slices, version)
        held = SlicedCells(slices, read)
        groups = [geometry.groups[number] for number in slices.groups]
        share = attempt.run(
            lambda: sum(context.map_(lambda group: held.share(context.backend, group), groups), Digest()), Digest()
        )
        if peers.rank == COORDINATOR:
            attempt.run(lambda: self._store_layout(geometry), None)
        none: list[Shard] = []
        shards = attempt.run(lambda: planned_shards(geometry, self._form), none)
        attempt.agree("layout")
        stored: list[StoredShard] = []
        written = Digest()
        for first in range(0, len(shards), peers.size):
            wave = shards[first : first + peers.size]
            wanted = {rank: _groups_of(geometry, wave[rank]) if rank < len(wave) else [] for rank in range(peers.size)}
            with _Spool() as spool:
                for number, cells in cells_to(peers, slices, wanted, read, attempt):
                    attempt.run(partial(spool.put, number, cells), None)
                if peers.rank < len(wave):
                    shard = wave[peers.rank]
                    key = keyframe_key(version, write_id, shard.name)
                    nothing: list[StoredShard] = []
                    stored += attempt.run(partial(self._written, geometry, shard, key, spool), nothing)
                    written += attempt.run(partial(self._sum, geometry, shard, spool), Digest())
        lanes = share.lane_0, share.lane_1, written.lane_0, written.lane_1
        *found, lane_0, lane_1 = sum_lanes(peers, lanes, "state")
        every = peers.gather(b"\n".join(shard.canonical() for shard in stored), "shards")
        attempt.agree("shards")
        if (lane_0, lane_1) != tuple(found):
            raise Conflict(f"version {version}: the cells that were stored are not those that the ranks hold")
        refs: list[KeyframeRef] = []
        if every is not None:
            refs = attempt.run(lambda: [self._index(geometry, version, write_id, shards, every)], refs)
        attempt.agree("index")
        return (refs[0] if refs else None), Digest(lane_0, lane_1)

    def due(self, geometry: Geometry, version: int) -> tuple[str | None, bool]:
        """Tell whether a version that was just committed is to have a keyframe, which the coordinator decides.

        Returns:
            The keyframe's write id, None if it is not due; and whether the next version's is likely to be.
        """
        peers, options, here = self._peers, self._options, self._peers.rank == COORDINATOR
        said = b""
        if here:
            state, nbytes = self._log.reader.state, geometry.nbytes
            every, share = options.keyframe_every, options.keyframe_share
            newest = state.latest is not None and state.latest.version == version
            due = newest and keyframe_due(state, nbytes, every=every, share=share)
            soon = every == 1 if due else newest and keyframe_soon(state, nbytes, every=every, share=share)
            said = (_SOON if soon else _LATER) + (self._new_id().encode() if due else b"")
        said = peers.broadcast(said if here else None, "keyframe due")
        return said[1:].decode() or None, said[:1] == _SOON

    def attach(self, shadow: Shadow, slices: SliceMap, version: int, write_id: str) -> None:
        """Store and attach a keyframe of a committed version.

        Raises:
            PulseError: on all ranks, what went wrong on one. It costs no version, and is due again after the next push.
        """
        stored, digest = self.store(shadow, slices, version, write_id)

        def attach() -> Record:
            if stored is None or digest.hex() != self._log.reader.state.version(version).digest:
                raise Conflict("its cells were changed while they were read")
            return self._log.writer.attach(keyframes=[stored], write_id=write_id)

        self._log.append(Attempt(self._peers), attach, write_id)

    def _store_layout(self, geometry: Geometry) -> None:
        layout = geometry.layout.canonical()
        if len(layout) > LAYOUT:
            raise InvalidModel(
                f"a layout has at most {LAYOUT:,} bytes, and the model's names and shapes take {len(layout):,}"
            )
        create(self._context.store, layout_key(geometry.id), layout)

    def _written(self, geometry: Geometry, shard: Shard, key: str, spool: _Spool) -> list[StoredShard]:
        store, name, map_ = self._context.store, self._context.backend.name, self._context.map_
        return [write_shard(store, geometry, shard, key, spool.get, self._form, name, map_)]

    def _sum(self, geometry: Geometry, shard: Shard, spool: _Spool) -> Digest:
        """Return what a shard's cells add to the state digest."""
        total = Digest()
        for number in _groups_of(geometry, shard):
            group = geometry.groups[number]
            cells, at = spool.get(group), 0
            for span in group.spans:
                size = span.stop - span.start
                if shard.first <= span.tensor < shard.last:
                    total += Digest(*self._context.backend.digest(cells[at : at + size], group.start + at))
                at += size
        return total

    def _index(
        self, geometry: Geometry, version: int, write_id: str, shards: list[Shard], every: list[bytes]
    ) -> KeyframeRef:
        found = {stored.name: stored for said in every if said for stored in map(StoredShard.parse, said.split(b"\n"))}
        ordered = [found[shard.name] for shard in shards]
        return write_index(self._context.store, geometry, version, write_id, ordered, self._form)


def _groups_of(geometry: Geometry, shard: Shard) -> list[int]:
    """Return the numbers of the groups that a shard holds cells of."""
    found: list[int] = []
    for tensor in range(shard.first, shard.last):
        start = geometry.tensor_start(tensor)
        for number in geometry.groups.meeting(start, start + geometry.sizes[tensor]):
            if not found or found[-1] < number:
                found.append(number)
    return found


class _Spool:
    """A file of groups' cells on their way into a shard: the store may read them more than once.

    It is made with the first group: a rank that can't make it must not leave the others in the middle of a collective.
    """

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._end = 0
        self._open = ExitStack()

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def put(self, number: int, cells: Cells) -> None:
        """Keep a group's cells."""
        with _disk():
            if not self._places:
                made = tempfile.TemporaryFile(dir=temporary_folder())  # noqa: SIM115 - closed with the spool
                self._file = self._open.enter_context(made)
            write_all(self._file.fileno(), memoryview(cells.view(np.uint8).data), self._end)
        self._places[number] = self._end
        self._end += cells.nbytes

    def get(self, group: Group) -> Cells:
        """Return a group's cells."""
        nbytes = group.cells * group.cell_type.width
        with _disk():
            data = os.pread(self._file.fileno(), nbytes, self._places[group.number])
        return np.frombuffer(data, group.cell_type.dtype)


@contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"a keyframe's shard can't be kept in {temporary_folder()} on its way: {error.strerror}"
        ) from error
