"""Reader of a keyframe's pieces: each is fetched, checked, and decoded where it is coded, in this thread's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from pulse_registry.cache import read_piece
from pulse_registry.errors import CorruptObject
from pulse_registry.format.pieces import MOST_INDEX_BYTES
from pulse_registry.format.plain_shard import PiecedShard, PlainShard
from pulse_registry.process.parallel import Map
from pulse_registry.process.scratch import Scratch
from pulse_registry.store import Store
from pulse_registry.store.verified_read import checked, filled, verified
from pulse_schemas import KeyframeRef

WINDOW = 512
"""Ranges that are asked of an executor at a time: more would only lie in its queue."""


class PieceReader:
    """Fetches pieces; what is damaged on the way is fetched again. Thread-safe."""

    def __init__(self, store: Store, *, alone: bool = False) -> None:
        """Take a store.

        Args:
            store: scoped to the run.
            alone: whether its cache, if it has one, is to fetch and keep each piece without the rest of its shard.
        """
        self._store, self._alone = store, alone
        self._plain, self._coded = Scratch(), Scratch()

    def read(self, shard: PiecedShard, number: int, room: memoryview | None = None) -> memoryview:
        """Return the plain bytes of a piece, checked; without ``room`` they stay until this thread's next call.

        Raises:
            CorruptObject: it is not what was committed.
            NotFound, StoreUnavailable: as the store.
        """
        start, stop = shard.plain(number)
        plain = self._plain.of(stop - start) if room is None else room
        if isinstance(shard, PlainShard):
            return self._fetched(shard, number, plain)
        first, last = shard.stored(number)
        shard.decode(number, self._fetched(shard, number, self._coded.of(last - first)), plain)
        return plain

    def read_run(self, shard: PlainShard, run: range, room: memoryview) -> Iterator[memoryview]:
        """Yield neighbouring pieces, each checked, that one request brings into ``room``.

        A piece that was damaged on the way is fetched again by itself.

        Raises:
            CorruptObject: one is not what was committed.
            NotFound, StoreUnavailable: as the store.
        """
        begin = shard.stored(run[0])[0]
        try:
            filled(self._store, shard.ref.key, (begin, begin + len(room)), room)
            came = True
        except CorruptObject:
            came = False  # an object that is too short here may be whole under another root: each piece looks there
        for number in run:
            start, stop = (at - begin for at in shard.stored(number))
            yield self._fetched(shard, number, room[start:stop], came=came)

    def _fetched(self, shard: PiecedShard, number: int, room: memoryview, *, came: bool = False) -> memoryview:
        start, stop = shard.stored(number)
        if self._alone:
            read = read_piece(self._store, shard.ref, start, shard.hashes[number], room)
        else:
            read = partial(filled, self._store, shard.ref.key, (start, stop), room)
        return checked(read, partial(shard.check, number), room if came else None)


def fetch_index(store: Store, ref: KeyframeRef) -> bytes:
    """Return the bytes of a keyframe's index, checked against the record.

    Raises:
        CorruptObject: it is not what was committed, or longer than any.
        NotFound, StoreUnavailable: as the store.
    """
    index = ref.index
    if index.size > MOST_INDEX_BYTES:
        raise CorruptObject(
            f"{index.key}: an index of {index.size} bytes was committed, and {MOST_INDEX_BYTES} are the most"
        )
    read = partial(store.get, index.key, (0, index.size))
    return verified(read, bytes.fromhex(index.blake3), f"{index.key}: its BLAKE3")


def in_windows(map_: Map, take: Callable[..., None], items: Iterable[Any]) -> None:
    """Call a function on each item, over the threads of a map; few of them are made and queued at a time."""
    left = iter(items)
    while window := list(islice(left, WINDOW)):
        list(map_(take, window))
