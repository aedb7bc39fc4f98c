"""Fetch of a keyframe in part: of its pieces, only those that hold a cell that is asked for.

Where each cell lies follows from the layout and the index, so nothing of a shard is read to find out. Each piece is
checked before a cell of it is handed over; no file is made, and memory stays within a few pieces for each thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pulse_kernels.select import exponent_loops
from pulse_registry.cache import expect
from pulse_registry.errors import CorruptObject, about
from pulse_registry.format.coded_shard import CodedShard
from pulse_registry.format.keyframe import Shard
from pulse_registry.format.pieces import PIECE_BYTES, read_pieces
from pulse_registry.format.plain_shard import PiecedShard, pieced_shards
from pulse_registry.format.weight_map import mapped_shards
from pulse_registry.process.parallel import Map
from pulse_registry.pull.download import MemoryShard
from pulse_registry.pull.fetch import check_size, land_whole
from pulse_registry.pull.piece_cells import PieceCells, Take
from pulse_registry.pull.piece_reader import PieceReader, fetch_index, in_windows
from pulse_registry.store import Store
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import KeyframeRef, ObjectRef

Wanted = Callable[[int, int, int], bool]
"""Tells whether any of a tensor's cells ``start`` to ``stop`` is asked for."""


def fetch_cells(store: Store, geometry: Geometry, ref: KeyframeRef, wanted: Wanted, take: Take, map_: Map) -> int:
    """Fetch the pieces of a keyframe that hold wanted cells, and hand these over, each of them once.

    What a piece holds beside them may be handed over, too. Of a keyframe whose index lists no pieces, whole shards are
    fetched, into memory, one after another.

    Args:
        store: scoped to the run.
        geometry: of the keyframe's layout.
        ref: what the record says.
        wanted: asked of tensors by number, in this thread; of empty ranges never.
        take: gets the cells, in any order. After an error, what it got is not the keyframe's, as far as anyone knows.
        map_: ``map``, or an executor's.

    Returns:
        Bytes of the pieces and the index; a piece that was damaged on the way, and fetched again, counts once.

    Raises:
        CorruptObject: the index or a piece is not what was committed, or they do not fit the layout.
        UnsupportedFormat: the shards have a coding that this release does not know.
        NotFound, StoreUnavailable: as the store.
    """
    with about(ref.index.key):
        expect(store, [ref.index])
        index = fetch_index(store, ref)
        pieces, coding = read_pieces(ref, index)
        plain = mapped_shards(geometry, ref, index) if coding is None else []
        pieced = pieced_shards(geometry, ref, pieces, coding, exponent_loops()) if pieces is not None else []
    hand = PieceCells(geometry, take)
    if pieces is None:
        pairs = zip(ref.shards, plain, strict=True)
        return ref.index.size + sum(_fetch_whole(store, stored, shard, wanted, hand, map_) for stored, shard in pairs)
    plain = plain or [shard.shard for shard in pieced if isinstance(shard, CodedShard)]
    reader, nbytes = PieceReader(store, alone=True), ref.index.size

    def asked() -> Iterator[tuple[PiecedShard, Shard, _Asked]]:
        nonlocal nbytes
        for stored, shard in zip(pieced, plain, strict=True):
            for piece in _asked(geometry, shard, pieces.size, wanted):
                start, stop = stored.stored(piece.number)
                nbytes += stop - start
                yield stored, shard, piece

    def bring(item: tuple[PiecedShard, Shard, _Asked]) -> None:
        stored, shard, piece = item
        with about(stored.ref.key):
            data = reader.read(stored, piece.number)
            start = stored.plain(piece.number)[0]
            _check_header(stored.ref, shard, start, data)
        hand.over(data, start, piece.tensors)

    in_windows(map_, bring, asked())
    return nbytes


def _fetch_whole(store: Store, stored: ObjectRef, shard: Shard, wanted: Wanted, hand: PieceCells, map_: Map) -> int:
    """Fetch a shard of which only the whole hash is known, if it holds wanted cells; return the bytes fetched."""
    asked = list(_asked(hand.geometry, shard, PIECE_BYTES, wanted))
    if not asked:
        return 0
    expect(store, [stored])
    with about(stored.key):
        check_size(stored, store.size(stored.key))
        landing = MemoryShard(stored)
        land_whole(store, stored, landing, map_)
        data = memoryview(landing.map())
        _check_header(stored, shard, 0, data)

    def bring(piece: _Asked) -> None:
        start = piece.number * PIECE_BYTES
        hand.over(data[start : start + PIECE_BYTES], start, piece.tensors)

    in_windows(map_, bring, asked)
    return stored.size


@dataclass(frozen=True, slots=True)
class _Asked:
    """A piece with wanted cells: its number in the shard, the tensors that they are of, and where those begin."""

    number: int
    tensors: Sequence[tuple[int, int]]


def _asked(geometry: Geometry, shard: Shard, piece_bytes: int, wanted: Wanted) -> Iterator[_Asked]:
    number, tensors = -1, list[tuple[int, int]]()
    end = len(shard.header)
    for tensor in range(shard.first, shard.last):
        cells, at = geometry.sizes[tensor], end
        end = at + geometry.tensor_bytes(tensor)
        if not cells or not wanted(tensor, 0, cells):
            continue
        width = (end - at) // cells
        for piece in range(at // piece_bytes, -(-end // piece_bytes)):
            first, last = piece * piece_bytes - at, (piece + 1) * piece_bytes - at
            # Cells that the piece holds a part of count, too: then the piece beside it, which has the rest, is asked.
            if not wanted(tensor, max(0, first // width), min(cells, -(-last // width))):
                continue
            if piece != number and tensors:
                yield _Asked(number, tensors)
                tensors = []
            number = piece
            tensors.append((tensor, at))
    if tensors:
        yield _Asked(number, tensors)


def _check_header(stored: ObjectRef, shard: Shard, start: int, data: memoryview) -> None:
    """Check what of a shard's header is among its bytes from ``start`` on."""
    header = shard.header[start : start + len(data)]
    if bytes(data[: len(header)]) != header:
        raise CorruptObject(f"{stored.key}: it is not the header of the layout's tensors from number {shard.first} on")
