"""One object on its way from a store to another: fetched in pieces, some ahead, and checked before its end is sent.

A put is all or nothing, and the last bytes are given to it only once all of them have hashed to what the record says:
so a damaged object is never stored under its key, and no object is ever in memory as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import Final

from blake3 import blake3

from pulse_registry.errors import CorruptObject
from pulse_registry.format.patch_parts import Stored, pieces_of
from pulse_registry.mirror.rate import Rate
from pulse_registry.process.parallel import end
from pulse_registry.store import Store
from pulse_registry.store.body import Buffer, Stream

PIECE: Final = 8 << 20
"""Bytes of one request."""
AHEAD: Final = 4
"""Pieces of one object under way at a time: over a far link each takes a round trip more than its bytes do."""


class Damaged(CorruptObject):
    """The source's bytes are not those that a record names.

    Attributes:
        found: what they hash to, by which a second try knows them again.
    """

    def __init__(self, message: str, found: bytes) -> None:
        super().__init__(message)
        self.found = found


class Transfer(Stream):
    """The bytes of one stored object, for a put."""

    def __init__(self, source: Store, item: Stored, readers: Executor, rate: Rate) -> None:
        """Prepare; no I/O yet.

        Args:
            source: scoped to the run.
            item: what is to be there.
            readers: its threads fetch.
            rate: is asked before each request.
        """
        self.nbytes = item.size
        self._source, self._item, self._readers, self._rate = source, item, readers, rate

    def __iter__(self) -> Iterator[Buffer]:
        """Fetch and check the object anew.

        Raises:
            Damaged: it is another one; before its last bytes are given.
            NotFound, CorruptObject, AccessDenied, StoreUnavailable: as `Store.get`.
        """
        check = _Check(self._item)
        for data in self._fetched():
            check.update(data)
            yield data
        check.finish()

    def check(self) -> None:
        """Fetch and check the object, and send it nowhere; raises as the iteration."""
        for _ in self:
            pass

    def _fetched(self) -> Iterator[bytes]:
        waiting: deque[Future[bytes]] = deque()
        starts = iter(range(0, self.nbytes, PIECE))
        try:
            while True:
                while len(waiting) < AHEAD and (start := next(starts, None)) is not None:
                    waiting.append(self._readers.submit(self._fetch, start))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            end([*waiting])

    def _fetch(self, start: int) -> bytes:
        stop = min(start + PIECE, self.nbytes)
        self._rate.take(stop - start)
        return self._source.get(self._item.key, (start, stop))


class _Check:
    """Hashes an object's pieces as its bytes come by; the last one before the last bytes are let go."""

    def __init__(self, item: Stored) -> None:
        self._item, self._pieces = item, pieces_of(item)
        self._hasher, self._left, self._digest, self._at = blake3(), 0, "", 0

    def update(self, data: bytes) -> None:
        view = memoryview(data)
        while view.nbytes:
            while not self._left:
                self._left, self._digest = next(self._pieces)
                self._hasher = blake3()
            taken, view = view[: self._left], view[self._left :]
            self._hasher.update(taken)
            self._left -= taken.nbytes
            self._at += taken.nbytes
            if not self._left:
                self._compare()

    def finish(self) -> None:
        """Check an object of no bytes, which has had none to check."""
        if not self._item.size:
            self._digest = next(self._pieces, (0, blake3().hexdigest()))[1]
            self._compare()

    def _compare(self) -> None:
        found = self._hasher.digest()
        if found.hex() != self._digest:
            raise Damaged(
                f"{self._item.key}: the BLAKE3 of its bytes up to {self._at:,} is {found.hex()}, and {self._digest} "
                "was committed",
                found,
            )
