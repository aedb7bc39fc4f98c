"""Segments of a run's state: cut from its tables, fetched side by side, and joined to tables again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from pulse_registry.errors import CorruptObject
from pulse_registry.format import keys
from pulse_registry.format.segment import COLUMNS, Numbers, SegmentTable, parse_segment, segment_bytes
from pulse_registry.log.block import FULL_BYTES, ROWS, Block
from pulse_registry.log.documents import LOG, SEGMENT
from pulse_registry.log.table import Kind, Table
from pulse_registry.log.tables import KEYFRAMES, PATCHES, VERSIONS, Tables
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.store.verified_read import verified
from pulse_schemas import NextIds, SegmentRef, SegmentRows

if TYPE_CHECKING:
    from pulse_registry.store import Store

SPLIT: Final = 16 << 20
"""Bytes of rows from which on the next ones are in another segment."""
_AT_ONCE: Final = 16
_KINDS: Final[tuple[Kind[Any], ...]] = (VERSIONS, PATCHES, KEYFRAMES)

Ids = Mapping[str, Numbers]
"""The ids of some rows of each table, rising."""
Content = Mapping[str, SegmentTable]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A segment that is stored, as a snapshot names it, and the ids of all of its rows."""

    ref: SegmentRef
    ids: Ids

    @property
    def key(self) -> str:
        """Where it lies."""
        return segment_key(self.ref)


def segment_key(ref: SegmentRef) -> str:
    """Return the key of a segment that a snapshot names.

    Raises:
        CorruptObject: no snapshot has its number.
    """
    if not ref.seq < 10**12:
        raise CorruptObject(f"it names a segment of snapshot {ref.seq}")
    return keys.segment_key(ref.seq, ref.blake3)


def live_ids(tables: Tables) -> Ids:
    """Return the ids of the rows that are not dead."""
    return {kind.name: (table := table_of(tables, kind.name)).ids[table.alive] for kind in _KINDS}


def table_of(tables: Tables, name: str) -> Table[Any]:
    """Return one of the tables by its name."""
    table: Table[Any] = getattr(tables, name)
    return table


# -- writing -----------------------------------------------------------------------------------------------------------


def cut(tables: Tables, wanted: Ids) -> Iterator[Content]:
    """Yield the rows with some ids, in the order of the tables, in as many segments as their bytes take.

    Args:
        tables: which have rows with all of these ids.
        wanted: neighbours: between them are dead rows at most, which are left out.
    """
    content, room = _empty(), SPLIT
    for kind in _KINDS:
        table, ids = table_of(tables, kind.name), wanted[kind.name]
        rows = np.searchsorted(table.ids, ids)
        blocks: list[tuple[int, bytes]] = []
        first = last = 0
        for block in _blocks(table, rows):
            blocks.append((block.rows, block.frame))
            last += block.rows
            room -= len(block.frame)
            if room < 0:
                content[kind.name] = _rows(table, rows[first:last], blocks)
                yield content
                content, room, blocks, first = _empty(), SPLIT, [], last
        content[kind.name] = _rows(table, rows[first:last], blocks)
    if any(len(table.ids) for table in content.values()):
        yield content


def encoded(seq: int, content: Content) -> tuple[Segment, bytes]:
    """Return a segment that snapshot ``seq`` is the first to name, and its bytes."""
    data = segment_bytes(content)
    rows = {name: SegmentRows(rows=len(table.ids)) for name, table in content.items()}
    ref = SegmentRef(seq=seq, size=len(data), blake3=blake3(data).hexdigest(), **rows)
    return Segment(ref, {name: table.ids for name, table in content.items()}), data


def lines_of(table: Table[Any], rows: npt.NDArray[np.intp]) -> Iterator[bytes]:
    """Yield the JSON of some rows, which rise."""
    if not len(rows):
        return
    first = int(rows[0])
    for block in table.blocks(first, int(rows[-1]) + 1):
        inside = rows[slice(*np.searchsorted(rows, (first, first + block.rows)))] - first
        first += block.rows
        if len(inside):
            found = block.lines()
            yield from (found[row] for row in inside.tolist())


def _empty() -> dict[str, SegmentTable]:
    return {
        name: SegmentTable(np.zeros(0, np.int64), np.zeros((len(columns), 0), np.int64), ())
        for name, columns in COLUMNS.items()
    }


def _rows(table: Table[Any], rows: npt.NDArray[np.intp], blocks: Sequence[tuple[int, bytes]]) -> SegmentTable:
    return SegmentTable(table.ids[rows], table.numbers[:, rows], tuple(blocks))


def _blocks(table: Table[Any], rows: npt.NDArray[np.intp]) -> Iterator[Block]:
    """Yield the JSON of some rows: full blocks as they are, other rows together."""
    if not len(rows):
        return
    lines: list[bytes] = []
    first = int(rows[0])
    for block in table.blocks(first, int(rows[-1]) + 1):
        inside = rows[slice(*np.searchsorted(rows, (first, first + block.rows)))] - first
        first += block.rows
        if len(inside) == block.rows and (block.rows >= ROWS or block.nbytes >= FULL_BYTES):
            if lines:
                yield Block.of(lines)
                lines = []
            yield block
        elif len(inside):
            found = block.lines()
            for row in inside.tolist():
                lines.append(found[row])
                if len(lines) == ROWS or sum(map(len, lines)) >= FULL_BYTES:
                    yield Block.of(lines)
                    lines = []
    if lines:
        yield Block.of(lines)


# -- reading -----------------------------------------------------------------------------------------------------------


def fetch(
    store: Store, run: str, refs: Sequence[SegmentRef], threads: Callable[[int, str], Executor] | None
) -> list[Content]:
    """Fetch segments side by side, each checked against its hash.

    Args:
        store: scoped to the run.
        run: the run's name.
        refs: as a snapshot names them.
        threads: makes an executor, of so many threads and their name's beginning; None: one after the other.

    Raises:
        CorruptObject, UnsupportedFormat: one is not what the snapshot says; or they are larger than a log may be.
        NotFound: one is gone: a newer snapshot has taken the place of this one.
        AccessDenied, StoreUnavailable: the store can't be read.
    """
    if sum(ref.size for ref in refs) > LOG or any(ref.size > SEGMENT for ref in refs):
        raise CorruptObject(f"it names segments of more than {LOG:,} bytes, or one of more than {SEGMENT:,}")
    gateway = store.gateway()
    if gateway is not None and refs:
        gateway.expect(run, [segment_key(ref) for ref in refs])
    read = partial(_fetch, store)
    if threads is None or len(refs) < 2:
        return [*map(read, refs)]
    with threads(min(_AT_ONCE, len(refs)), "pulse-segments") as pool:
        return [*ParallelMap(pool)(read, refs)]


def _fetch(store: Store, ref: SegmentRef) -> Content:
    key = segment_key(ref)
    read = partial(store.get, key, max_bytes=ref.size)
    data = verified(read, bytes.fromhex(ref.blake3), f"{key}: the BLAKE3 of its bytes")
    content = parse_segment(key, data)
    if len(data) != ref.size or any(len(content[name].ids) != getattr(ref, name).rows for name in COLUMNS):
        raise CorruptObject(f"{key}: it has other bytes, or rows, than the snapshot says")
    return content


def joined(refs: Sequence[SegmentRef], contents: Sequence[Content], next_ids: NextIds) -> Tables:
    """Return the tables that segments are of, in their order.

    Raises:
        CorruptObject: they can't be of one state.
    """
    tables = Tables(*(_joined(kind, refs, contents) for kind in _KINDS))
    if sum(table_of(tables, kind.name).nbytes for kind in _KINDS) > LOG:
        raise CorruptObject(f"its segments say that they have more than {LOG:,} bytes of rows")
    for kind in _KINDS:
        table, next_id = table_of(tables, kind.name), getattr(next_ids, kind.name)
        if table.next_id > next_id:
            raise CorruptObject(f"the next of its {kind.name} has id {next_id}, which one has already, or later ones")
        table.next_id = next_id
    return tables


def _joined(kind: Kind[Any], refs: Sequence[SegmentRef], contents: Sequence[Content]) -> Table[Any]:
    found = [content[kind.name] for content in contents]
    ids = np.concatenate([np.zeros(0, np.int64), *(table.ids for table in found)])
    if not (np.diff(ids) > 0).all():
        raise CorruptObject(f"the ids of its {kind.name} do not rise from segment to segment")
    numbers = np.concatenate([np.zeros((len(kind.columns), 0), np.int64), *(table.numbers for table in found)], axis=1)
    blocks = (
        Block(rows, frame, segment_key(ref))
        for ref, table in zip(refs, found, strict=True)
        for rows, frame in table.blocks
    )
    masks = (_mask(ref, getattr(ref, kind.name)) for ref in refs)
    dead = np.concatenate([np.zeros(0, np.bool_), *masks])
    return Table.of(kind, numbers, blocks, dead if dead.any() else None, ids)


def _mask(ref: SegmentRef, rows: SegmentRows) -> npt.NDArray[np.bool_]:
    dead = np.zeros(rows.rows, np.bool_)
    at = 0
    for first, count in rows.dead:
        if not at <= first < first + count <= rows.rows:
            raise CorruptObject(f"it says of rows of {segment_key(ref)} that they are dead which it has not")
        dead[first : first + count] = True
        at = first + count
    return dead


def runs_of(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return rising numbers as runs: the first of each, and how many."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and sum(runs[-1]) == number:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return tuple(runs)
