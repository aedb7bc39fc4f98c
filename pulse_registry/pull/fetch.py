"""Fetch of a route's objects: each is checked against its committed size and BLAKE3, or a typed error is raised.

Large objects come in parallel ranges; what is damaged on the way is fetched again, and nothing else with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from blake3 import blake3

from pulse_kernels.select import exponent_loops
from pulse_registry.cache import expect
from pulse_registry.errors import CorruptObject, about
from pulse_registry.format.coded_shard import CodedShard, coded_shards
from pulse_registry.format.patch import Patch
from pulse_registry.format.patch_head import most_head_bytes
from pulse_registry.format.pieces import MOST_INDEX_BYTES, PIECE_BYTES, Pieces, read_pieces
from pulse_registry.process.hashing import large_hasher
from pulse_registry.process.parallel import Map
from pulse_registry.process.scratch import Scratch
from pulse_registry.pull.download import Landing, MemoryShard, ShardBytes, SpoolFile, remove_stale
from pulse_registry.store import Store
from pulse_registry.store.verified_read import Data, checked, filled, verified
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import KeyframeRef, ObjectRef, PatchRef

RANGE_BYTES = 16 << 20
"""A longer patch is fetched by ranges of this size."""
_BEGINNINGS_BYTES, _LEAST_BEGINNING = 64 << 20, 1 << 20
"""The first reads of all patches of a chain take no more together, and each of them no less."""
FETCH_THREADS = 8
"""Ranges on their way at a time: enough for 10 Gbit/s at 50 ms, and few enough for 256 MiB at twice 16 MiB each."""
WINDOW = 512
"""Ranges that are asked of an executor at a time: more would only lie in its queue."""
_MOST_ENTRY, _MOST_HEADERS = 4096, 64 << 10
"""Bytes of a tensor in its shard's header (a name has at most 512 letters), and of all that headers have besides."""


def begin_patches(store: Store, geometry: Geometry, refs: Sequence[PatchRef], map_: Map) -> list[Patch]:
    """Fetch the beginnings of patches and check their heads: all of a small one, the first range of a large one.

    What is missing is for ``arriving``; no more than the committed size is read, whatever lies under the key.

    Args:
        store: scoped to the run; read again where a group is found damaged.
        geometry: of the layout of all of them.
        refs: what the records say.
        map_: ``map``, or an executor's.
    """
    expect(store, [ref.object for ref in refs])
    # The beginnings of a long chain are in memory together.
    nbytes = min(RANGE_BYTES, max(_LEAST_BEGINNING, _BEGINNINGS_BYTES // max(1, len(refs))))
    return list(map_(lambda ref: _begin_patch(store, geometry, ref, nbytes), refs))


def _begin_patch(store: Store, geometry: Geometry, ref: PatchRef, nbytes: int) -> Patch:
    key, most = ref.object.key, most_head_bytes(geometry)
    if ref.head_size > most:
        raise CorruptObject(f"{key}: a head of {ref.head_size} bytes was committed, and its layout allows {most}")
    first = min(ref.object.size, max(nbytes, ref.head_size))
    with about(key):
        parse = partial(Patch.parse, geometry, ref, read=lambda byte_range: store.get(key, byte_range))
        return checked(partial(store.get, key, (0, first)), parse)


def fetch_shards(
    store: Store, geometry: Geometry, ref: KeyframeRef, map_: Map, spool: Path | None, *, in_memory: bool = False
) -> list[ShardBytes]:
    """Fetch the plain shards of a keyframe, each byte of them read once, and checked as it was read.

    Args:
        store: scoped to the run.
        geometry: of the keyframe's layout, which bounds what coded shards can be.
        ref: what the record says.
        map_: ``map``, or an executor's: memory stays within a piece for each of its threads.
        spool: folder for files on their way; a pull after one that died goes on with what it left there. None:
            unnamed files in the system's temporary folder.
        in_memory: without a spool, keep them in memory instead.

    Raises:
        CorruptObject: a file is not what was committed.
        UnsupportedFormat: the shards have a coding that this release does not know.
        NotFound, StoreUnavailable: as the store.
    """
    if ref.index.size > MOST_INDEX_BYTES:
        raise CorruptObject(
            f"{ref.index.key}: an index of {ref.index.size} bytes was committed, and {MOST_INDEX_BYTES} are the most"
        )
    expect(store, [ref.index, *ref.shards])
    read_index = partial(store.get, ref.index.key, (0, ref.index.size))
    index = verified(read_index, bytes.fromhex(ref.index.blake3), f"{ref.index.key}: its BLAKE3")
    pieces, coding = read_pieces(ref, index)
    coded = coded_shards(geometry, ref, pieces, coding, exponent_loops()) if pieces and coding else []
    if not coded:
        _check_plain(geometry, ref)
    shards: list[ShardBytes] = []
    scratch = Scratch()
    if spool is not None:
        remove_stale(spool)
    try:
        for part in coded:
            taken = part.ref.model_copy(update={"size": part.nbytes})
            place: Landing = MemoryShard(taken) if in_memory and spool is None else SpoolFile(taken, spool)
            shards.append(place)
            with about(part.ref.key):
                _land_coded(store, part, place, map_, scratch)
        for shard in ref.shards if not coded else ():
            with about(shard.key):
                # Before anything is made that is as long as it says; pieces say so too, one hash for each.
                _check_size(shard, store.size(shard.key) if pieces is None else shard.size)
                landing: Landing = MemoryShard(shard) if in_memory and spool is None else SpoolFile(shard, spool)
                shards.append(landing)
                _land(store, shard, pieces, landing, map_, scratch)
    except BaseException:
        for begun in shards:
            begun.keep()
        raise
    return shards


def _check_plain(geometry: Geometry, ref: KeyframeRef) -> None:
    """Check that plain shards are together no larger than their layout can be, before room is made for them."""
    nbytes = sum(shard.size for shard in ref.shards)
    most = geometry.nbytes + _MOST_HEADERS + _MOST_ENTRY * len(geometry.sizes)
    if nbytes > most:
        raise CorruptObject(f"{ref.index.key}: {nbytes} bytes of shards were committed, and the layout allows {most}")


def _land(store: Store, shard: ObjectRef, pieces: Pieces | None, landing: Landing, map_: Map, scratch: Scratch) -> None:
    """Bring a shard's bytes to their place, each piece checked before it is written."""
    if pieces is None:
        _land_whole(store, shard, landing, map_, scratch)
        return
    hashes = pieces.blake3[shard.key.rpartition("/")[2]]

    def take(number: int) -> None:
        start = number * pieces.size
        stop = min(start + pieces.size, shard.size)
        if landing.resumed and blake3(landing.read(start, stop)).hexdigest() == hashes[number]:
            return
        room = landing.room(start, stop)
        read = partial(filled, store, shard.key, (start, stop), scratch.of(stop - start) if room is None else room)
        what = f"{shard.key}: the BLAKE3 of piece {number}"
        landing.write(start, verified(read, bytes.fromhex(hashes[number]), what))

    _in_windows(map_, take, range(len(hashes)))


def _land_coded(store: Store, shard: CodedShard, landing: Landing, map_: Map, scratch: Scratch) -> None:
    """Bring the plain bytes of a coded shard to their place, each piece checked before it is decoded."""
    key, decoded = shard.ref.key, Scratch()

    def take(number: int) -> None:
        part, place = shard.parts[number], shard.stored(number)
        if landing.resumed and shard.holds(number, memoryview(landing.read(part.start, part.stop))):
            return
        read = partial(filled, store, key, place, scratch.of(place[1] - place[0]))
        data = checked(read, partial(shard.check, number))
        plain = landing.room(part.start, part.stop)
        plain = plain if plain is not None else decoded.of(part.nbytes)
        shard.decode(number, data, plain)
        landing.write(part.start, plain)

    _in_windows(map_, take, range(len(shard.parts)))


def _read(store: Store, shard: ObjectRef, start: int, stop: int, landing: Landing, scratch: Scratch) -> memoryview:
    room = landing.room(start, stop)
    if room is None:
        room = scratch.of(stop - start)
    store.get_into(shard.key, (start, stop), room)
    return room


def _land_whole(store: Store, shard: ObjectRef, landing: Landing, map_: Map, scratch: Scratch) -> None:
    """Fetch a shard of which only the whole hash is known, since the index is one without pieces."""
    starts = range(0, shard.size, PIECE_BYTES)
    there = landing.resumed

    def take(start: int) -> None:
        stop = min(start + PIECE_BYTES, shard.size)
        landing.write(start, _read(store, shard, start, stop, landing, scratch))

    def read() -> memoryview:
        nonlocal there
        if not there:
            _in_windows(map_, take, starts)
        there = False
        return memoryview(landing.map())

    checked(read, lambda data: _check(shard, data))


def _in_windows(map_: Map, take: Callable[..., None], items: Sequence[Any]) -> None:
    for at in range(0, len(items), WINDOW):
        list(map_(take, items[at : at + WINDOW]))


def _check(ref: ObjectRef, data: Data) -> Data:
    _check_size(ref, len(data))
    _check_hash(ref, large_hasher(len(data)).update(data).hexdigest())
    return data


def _check_size(ref: ObjectRef, size: int) -> None:
    if size != ref.size or not size:
        raise CorruptObject(f"{ref.key}: {size} bytes, {ref.size} were committed")


def _check_hash(ref: ObjectRef, digest: str) -> None:
    if digest != ref.blake3:
        raise CorruptObject(f"{ref.key}: its BLAKE3 is {digest}, {ref.blake3} was committed")
