"""Fetch of a route's objects: each is checked against its committed size and BLAKE3, or a typed error is raised.

Large objects come in parallel ranges; what is damaged on the way is fetched again, and nothing else with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from pulse_kernels.select import exponent_loops
from pulse_registry.cache import expect
from pulse_registry.errors import CorruptObject, about
from pulse_registry.format.coded_shard import CodedShard
from pulse_registry.format.keyframe import Shard
from pulse_registry.format.patch import Patch
from pulse_registry.format.patch_head import most_head_bytes
from pulse_registry.format.pieces import PIECE_BYTES, Pieces, read_pieces
from pulse_registry.format.plain_shard import PiecedShard, PlainShard, pieced_shards
from pulse_registry.format.weight_map import mapped_shards
from pulse_registry.process.hashing import large_hasher
from pulse_registry.process.parallel import Map
from pulse_registry.process.scratch import Scratch
from pulse_registry.pull.announce import announce
from pulse_registry.pull.download import Landing, MemoryShard, ShardBytes, SpoolFile, remove_stale
from pulse_registry.pull.landing_digest import LandingDigest
from pulse_registry.pull.piece_reader import PieceReader, fetch_index, in_windows
from pulse_registry.store import Store
from pulse_registry.store.elsewhere import damaged_copies, read_elsewhere
from pulse_registry.store.verified_read import Data, checked, filled
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import KeyframeRef, ObjectRef, PatchRef

RANGE_BYTES = 16 << 20
"""A longer patch is fetched by ranges of this size."""
_BEGINNINGS_BYTES, _LEAST_BEGINNING = 64 << 20, 1 << 20
"""The first reads of all patches of a chain take no more together, and each of them no less."""
_WORTH_A_REQUEST = 64 << 10
"""Less than this is not worth a request of its own."""
_RUN_BYTES = 64 << 20
"""A request for pieces of a keyframe asks for no more. It takes 3 ms of CPU, 24 MiB of it take 30."""
FETCH_THREADS = 8
"""Ranges on their way at a time: enough for 10 Gbit/s at 50 ms, and few enough for 256 MiB at twice 16 MiB each."""
_MOST_ANNOUNCED = 2048
"""Parts that a service is asked to arrange for at once: its client keeps URLs of twice as many objects."""
_MOST_ENTRY, _MOST_HEADERS = 4096, 64 << 10
"""Bytes of a tensor in its shard's header (a name has at most 512 letters), and of all that headers have besides."""
Early: TypeAlias = Callable[[PatchRef, int], bytes | None]
"""Returns so many first bytes of a patch, where they were read before anybody asked for them; else None."""


def nothing_early(ref: PatchRef, nbytes: int) -> None:
    """Return None: nothing was read."""


def begin_patches(
    store: Store,
    run: str,
    geometry: Geometry,
    refs: Sequence[PatchRef],
    map_: Map,
    *,
    head_only: bool = False,
    early: Early = nothing_early,
) -> list[Patch]:
    """Fetch the beginnings of patches and check their heads: all of a small one, the first range of a large one.

    What is missing is for ``arriving``; no more than the committed size is read, whatever lies under the key.

    Args:
        store: scoped to the run; read again where a group is found damaged.
        run: its name.
        geometry: of the layout of all of them.
        refs: what the records say.
        map_: ``map``, or an executor's.
        head_only: no more than the head, unless the rest is too small for a request: few groups are asked for.
        early: gives what was read already.
    """
    expect(store, [ref.object for ref in refs])
    # The beginnings of a long chain are in memory together.
    nbytes = min(RANGE_BYTES, max(_LEAST_BEGINNING, _BEGINNINGS_BYTES // max(1, len(refs))))
    nbytes = _WORTH_A_REQUEST if head_only else nbytes
    begun = list(map_(lambda ref: _begin_patch(store, geometry, ref, nbytes, early), refs))
    if parts := [part for patch in begun for part in patch.places.parts()]:
        expect(store, parts)
        announce(store, run, [part.key for part in parts[:_MOST_ANNOUNCED]])
    return begun


def _begin_patch(store: Store, geometry: Geometry, ref: PatchRef, nbytes: int, early: Early) -> Patch:
    key, most = ref.object.key, most_head_bytes(geometry)
    if ref.head_size > most:
        raise CorruptObject(f"{key}: a head of {ref.head_size} bytes was committed, and its layout allows {most}")
    first = min(ref.object.size, max(nbytes, ref.head_size))
    with about(key):
        parse = partial(Patch.parse, geometry, ref, read=lambda name, byte_range: store.get(name, byte_range))
        return checked(partial(store.get, key, (0, first)), parse, early(ref, first))


def fetch_shards(
    store: Store,
    geometry: Geometry,
    ref: KeyframeRef,
    map_: Map,
    spool: Path | None,
    *,
    in_memory: bool = False,
    digest: LandingDigest | None = None,
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
        digest: is given the bytes of each piece that was checked.

    Raises:
        CorruptObject: a file is not what was committed.
        UnsupportedFormat: the shards have a coding that this release does not know.
        NotFound, StoreUnavailable: as the store.
    """
    expect(store, [ref.index, *ref.shards])
    index = fetch_index(store, ref)
    pieces, coding = read_pieces(ref, index)
    pieced = pieced_shards(geometry, ref, pieces, coding, exponent_loops()) if pieces is not None else []
    if coding is None:
        _check_plain(geometry, ref)
    if digest is not None:
        digest.expect(_placed(geometry, ref, index, pieced))
    shards: list[ShardBytes] = []
    reader = PieceReader(store)
    if spool is not None:
        remove_stale(spool)

    def landing_of(shard: ObjectRef, nbytes: int) -> Landing:
        taken = shard.model_copy(update={"size": nbytes})
        landing: Landing = MemoryShard(taken) if in_memory and spool is None else SpoolFile(taken, spool)
        shards.append(landing)
        return landing

    together = pieces_a_request(ref, pieces) if in_memory and spool is None and coding is None else 1

    def asked() -> Iterator[tuple[int, PiecedShard, Landing, range]]:
        for number, shard in enumerate(pieced):
            with about(shard.ref.key):
                landing = landing_of(shard.ref, shard.nbytes)
            last = len(shard.hashes)
            for first in range(0, last, together):
                yield number, shard, landing, range(first, min(first + together, last))

    def bring(item: tuple[int, PiecedShard, Landing, range]) -> None:
        number, shard, landing, run = item
        with about(shard.ref.key):
            for piece, data in zip(run, _landed(reader, shard, landing, run), strict=True):
                if digest is not None:
                    digest.add(number, shard.plain(piece)[0], data)

    try:
        in_windows(map_, bring, asked())
        for whole in ref.shards if pieces is None else ():
            with about(whole.key):
                # Before anything is made that is as long as it says; pieces say so too, one hash for each.
                check_size(whole, store.size(whole.key))
                land_whole(store, whole, landing_of(whole, whole.size), map_)
    except BaseException:
        for begun in shards:
            begun.keep()
        raise
    return shards


def _placed(geometry: Geometry, ref: KeyframeRef, index: bytes, pieced: Sequence[PiecedShard]) -> list[Shard]:
    """Return where the index puts the cells; nothing, where it does not say: that is no matter to who reads all."""
    coded = [shard.shard for shard in pieced if isinstance(shard, CodedShard)]
    if coded or not pieced:
        return coded
    try:
        return mapped_shards(geometry, ref, index)
    except CorruptObject:
        return []


def _check_plain(geometry: Geometry, ref: KeyframeRef) -> None:
    """Check that plain shards are together no larger than their layout can be, before room is made for them."""
    nbytes = sum(shard.size for shard in ref.shards)
    most = geometry.nbytes + _MOST_HEADERS + _MOST_ENTRY * len(geometry.sizes)
    if nbytes > most:
        raise CorruptObject(f"{ref.index.key}: {nbytes} bytes of shards were committed, and the layout allows {most}")


def pieces_a_request(ref: KeyframeRef, pieces: Pieces | None) -> int:
    """Return how many pieces a request asks for where they come into their own memory.

    A request costs some milliseconds of CPU; there are to be a few for each thread, so that all end at one time.
    """
    nbytes = min(_RUN_BYTES, sum(shard.size for shard in ref.shards) // (4 * FETCH_THREADS))
    return 1 if pieces is None else max(1, nbytes // pieces.size)


def _landed(reader: PieceReader, shard: PiecedShard, landing: Landing, run: range) -> Iterator[memoryview]:
    """Bring the plain bytes of pieces to their place; yield each, checked before it is written, until the next one."""
    start, stop = shard.plain(run[0])[0], shard.plain(run[-1])[1]
    room = landing.room(start, stop)
    if room is not None and isinstance(shard, PlainShard):
        yield from reader.read_run(shard, run, room)
        return
    [piece] = run
    there = memoryview(landing.read(start, stop) if landing.resumed else b"")
    if not there or not shard.holds(piece, there):
        there = reader.read(shard, piece, room)
        landing.write(start, there)
    yield there


def land_whole(store: Store, shard: ObjectRef, landing: Landing, map_: Map) -> None:
    """Fetch a shard of which only the whole hash is known, since the index is one without pieces.

    Raises:
        CorruptObject: it is not what was committed.
        NotFound, StoreUnavailable: as the store.
    """
    starts = range(0, shard.size, PIECE_BYTES)
    there, scratch = landing.resumed, Scratch()

    def take(damaged: int, start: int) -> None:
        stop = min(start + PIECE_BYTES, shard.size)
        room = landing.room(start, stop)
        room = room if room is not None else scratch.of(stop - start)
        with read_elsewhere(damaged):  # another thread than the one that reads again
            landing.write(start, filled(store, shard.key, (start, stop), room))

    def read() -> memoryview:
        nonlocal there
        if not there:
            in_windows(map_, partial(take, damaged_copies()), starts)
        there = False
        return memoryview(landing.map())

    checked(read, lambda data: _check(shard, data))


def _check(ref: ObjectRef, data: Data) -> Data:
    check_size(ref, len(data))
    _check_hash(ref, large_hasher(len(data)).update(data).hexdigest())
    return data


def check_size(ref: ObjectRef, size: int) -> None:
    """Check the size of an object that is not empty; raises CorruptObject."""
    if size != ref.size or not size:
        raise CorruptObject(f"{ref.key}: {size} bytes, {ref.size} were committed")


def _check_hash(ref: ObjectRef, digest: str) -> None:
    if digest != ref.blake3:
        raise CorruptObject(f"{ref.key}: its BLAKE3 is {digest}, {ref.blake3} was committed")
