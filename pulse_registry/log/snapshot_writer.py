"""Writes a run's snapshots: the rows that are new as a segment, merged with others where that is due; old ones go.

Whoever writes goes on from the newest snapshot, whoever wrote that; its segments are taken over only where they say,
byte for byte, what this writer's own state says, so that it signs nothing that it has not folded itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pulse_registry.errors import AccessDenied, CorruptObject, NotFound, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.format.segment import COLUMNS
from pulse_registry.log.block import Block
from pulse_registry.log.documents import SNAPSHOT, read_document
from pulse_registry.log.segment_merges import Part, merges
from pulse_registry.log.segmented import snapshot_of
from pulse_registry.log.segments import Content, Ids, Segment, cut, encoded, fetch, lines_of, live_ids, table_of
from pulse_registry.log.state import RunState
from pulse_registry.log.superseded import Listed, Told, listed, superseded
from pulse_registry.log.tables import Tables
from pulse_registry.log.unsealing import unsealed_snapshot
from pulse_registry.store.verified_read import checked
from pulse_schemas import SegmentedSnapshot, Signer, open_sealed

if TYPE_CHECKING:
    from pulse_registry.store import Store

_logger = logging.getLogger(__name__)
_DELETED_AT_ONCE: Final = 64


class _Rows(NamedTuple):
    """Rows that are a segment, or are to be one: the ids of the live ones, and what there is of it already."""

    ids: Ids
    part: Part
    segment: Segment | None = None
    content: Content | None = None


class SnapshotWriter:
    """Writes the snapshots of one run; for one thread at a time.

    Attributes:
        nbytes: of the last snapshot that was written here, without its segments; 0 before the first.
    """

    def __init__(self, store: Store, run: str, signer: Signer | None, believed: Callable[[bytes], bool]) -> None:
        """Prepare to write; no I/O yet.

        Args:
            store: scoped to the run.
            run: the run's name.
            signer: signs the snapshots.
            believed: tells whether readers who trust what this process trusts would open the run at a snapshot.
        """
        self.nbytes = 0
        self._store = store
        self._run = run
        self._signer = signer
        self._believed = believed
        self._segments: tuple[Segment, ...] = ()
        self._seq = -1  # the snapshot that these are of
        self._known: dict[int, Told] = {}
        self._may_delete = True

    def begin(self, seq: int, segments: Sequence[Segment]) -> None:
        """Go on from the snapshot that the run was opened at; later calls change nothing."""
        if self._seq < 0:
            self._seq, self._segments = seq, tuple(segments)

    def write(self, state: RunState) -> bool:
        """Write a snapshot of a state, unless nobody would open the run at it; tell whether it was written.

        Raises:
            AccessDenied, StoreUnavailable: the store did not take it; the next one makes up for it.
        """
        there = listed(self._store)
        self._take_over(state, there)
        segments, new = self._merged(state, there)
        snapshot = snapshot_of(state, segments)
        sealed = snapshot.seal(self._signer)
        if len(sealed) > SNAPSHOT:
            _logger.warning(
                "run %s: no snapshot written at %d: it has %d bytes, and readers take %d at most. To open the run "
                "takes longer with each record: delete what is retired (pulse gc), or some tags",
                *(state.run, state.seq, len(sealed), SNAPSHOT),
            )
            return False
        if not self._believed(sealed):
            return False
        for key, data in new.items():
            self._store.put(key, data)
        self._store.put(keys.snapshot_key(state.seq), sealed)
        self.nbytes, self._seq, self._segments = len(sealed), state.seq, tuple(segments)
        signer = open_sealed(sealed).signature
        self._known[state.seq] = Told(
            None if signer is None else signer.public, frozenset(segment.key for segment in segments)
        )
        if self._may_delete:
            self._tidy(state.seq, Listed((*there.snapshots, state.seq), there.segments | new.keys()))
        return True

    def _tidy(self, seq: int, there: Listed) -> None:
        """Delete what the new snapshot takes the place of, if this writer may."""
        there = Listed(tuple(sorted({*there.snapshots})), there.segments)
        self._known = {number: told for number, told in self._known.items() if number in there.snapshots}
        try:
            for key in islice(superseded(self._store, there, seq, self._known), _DELETED_AT_ONCE):
                self._store.delete(key)
        except AccessDenied as error:
            self._may_delete = False
            _logger.info("run %s: old snapshots stay until the collector deletes them: %s", self._run, error)

    def _take_over(self, state: RunState, there: Listed) -> None:
        """Go on from the newest snapshot, if another writer has written it and this state says the same."""
        newest = max((seq for seq in there.snapshots if seq <= state.seq), default=-1)
        if newest <= self._seq:
            return
        try:
            snapshot, _ = checked(partial(read_document, self._store, keys.snapshot_key(newest)), unsealed_snapshot)
            if not isinstance(snapshot, SegmentedSnapshot) or snapshot.run != self._run:
                return
            known = {(segment.ref.seq, segment.ref.blake3): segment for segment in self._segments}
            unknown = [ref for ref in snapshot.segments if (ref.seq, ref.blake3) not in known]
            for ref, content in zip(unknown, fetch(self._store, self._run, unknown, None), strict=True):
                segment = Segment(ref, {name: table.ids for name, table in content.items()})
                if not _says(state.tables, segment, content):
                    return
                known[ref.seq, ref.blake3] = segment
        except (NotFound, CorruptObject, UnsupportedFormat):
            return
        segments = tuple(known[ref.seq, ref.blake3] for ref in snapshot.segments)
        if _covered(state.tables, segments):
            self._segments, self._seq = segments, newest

    def _merged(self, state: RunState, there: Listed) -> tuple[list[Segment], dict[str, bytes]]:
        """Return the segments of a state, and by their keys the bytes of those that have to be written."""
        rows = self._rows(state.tables, there)
        segments: list[Segment] = []
        new: dict[str, bytes] = {}
        for run in merges([found.part for found in rows]):
            members = rows[run.start : run.stop]
            first = members[0]
            if len(members) == 1 and first.segment is not None and not first.part.fresh:
                segments.append(first.segment)
                continue
            contents = (
                [first.content]
                if len(members) == 1 and first.content is not None
                else cut(state.tables, {name: np.concatenate([m.ids[name] for m in members]) for name in COLUMNS})
            )
            for content in contents:
                segment, data = encoded(state.seq, content)
                segments.append(segment)
                new[segment.key] = data
        return segments, new

    def _rows(self, tables: Tables, there: Listed) -> list[_Rows]:
        """Return the live rows of a state: those of each segment that it has, then those in none."""
        live = live_ids(tables)
        found: list[_Rows] = []
        last = dict.fromkeys(COLUMNS, -1)
        for segment in self._segments:
            ids = {name: live[name][np.isin(live[name], segment.ids[name], assume_unique=True)] for name in COLUMNS}
            alive, count = _count(ids), _count(segment.ids)
            last = {name: max(last[name], *segment.ids[name][-1:].tolist(), -1) for name in COLUMNS}
            fresh = segment.key not in there.segments or 2 * alive < count
            nbytes = segment.ref.size * alive // max(count, 1) if fresh else segment.ref.size
            if alive:
                found.append(_Rows(ids, Part(nbytes, fresh), segment))
        rest = {name: live[name][np.searchsorted(live[name], last[name], "right") :] for name in COLUMNS}
        for content in cut(tables, rest):
            nbytes = sum(table.nbytes for table in content.values())
            ids = {name: table.ids for name, table in content.items()}
            found.append(_Rows(ids, Part(nbytes, fresh=True), content=content))
        return found


def _count(ids: Ids) -> int:
    return sum(len(found) for found in ids.values())


def _says(tables: Tables, segment: Segment, content: Content) -> bool:
    """Tell whether a segment says of the live rows that it has what the tables say of them.

    Raises:
        CorruptObject: a block of it is damaged.
    """
    for name, live in live_ids(tables).items():
        table, found = table_of(tables, name), content[name]
        mine = np.isin(found.ids, live, assume_unique=True)
        rows = np.searchsorted(table.ids, found.ids[mine])
        if not np.array_equal(found.numbers[:, mine], table.numbers[:, rows]):
            return False
        lines = (line for count, frame in found.blocks for line in Block(count, frame, segment.key).lines())
        said = (line for line, alive in zip(lines, mine.tolist(), strict=True) if alive)
        if any(ours != theirs for ours, theirs in zip(lines_of(table, rows), said, strict=True)):
            return False
    return True


def _covered(tables: Tables, segments: Sequence[Segment]) -> bool:
    """Tell whether all live rows but for the last ones are in segments, once and in order."""
    for name, live in live_ids(tables).items():
        ids = np.concatenate([np.zeros(0, np.int64), *(segment.ids[name] for segment in segments)])
        until = int(ids[-1]) if len(ids) else -1
        if not (np.diff(ids) > 0).all() or not np.isin(live[live <= until], ids, assume_unique=True).all():
            return False
    return True
