"""Caching store: objects that a record names are read through the node's cache, everything else from the store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from itertools import chain, repeat

from pulse_registry.cache.folder import CacheFolder
from pulse_registry.cache.node import NodeCache
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.format.patch_parts import Stored
from pulse_registry.process.open_files import read_into
from pulse_registry.store import MOST_WHOLE_BYTES, Buffer, ByteRange, Store, WrapperStore
from pulse_registry.store.checks import check_buffer
from pulse_registry.store.elsewhere import damaged_copies
from pulse_registry.store.verified_read import filled
from pulse_schemas import ObjectRef

_EXPECTED = 1 << 17
"""Objects whose references are remembered: more than the longest route has."""


class CachedStore(WrapperStore):
    """Reads the objects that it was told of through a cache. Writes, and everything else, go to the store below.

    Their bytes are no more to be believed than a store's: who reads them checks them, and may ``discard`` a copy.

    Attributes:
        below: the store that it wraps.
    """

    def __init__(
        self, store: Store, folder: CacheFolder, run: str, events: Events, threads: Callable[[], Executor]
    ) -> None:
        """Wrap a run's store; no I/O yet.

        Args:
            store: scoped to the run.
            folder: of the cache.
            run: its name, in events.
            events: hear why the cache could not be used, each reason once.
            threads: makes the threads that download.
        """
        super().__init__(store)
        self.below = store
        self._run, self._events = run, events
        self._folder = folder
        self._mutex = threading.Lock()
        self._expected: dict[str, Stored] = {}
        self._told: set[str] = set()
        self._node = NodeCache(folder, store, threads, self._bypassed)

    def expect(self, refs: Sequence[Stored]) -> None:
        """Take note of what records say of objects, by their keys below the run, that are about to be read."""
        with self._mutex:
            for ref in refs:
                self._expected.pop(ref.key, None)
                self._expected[ref.key] = ref
            while len(self._expected) > max(_EXPECTED, len(refs)):
                del self._expected[next(iter(self._expected))]

    def discard(self, key: str) -> bool:
        """Drop the copy of an object, which is damaged; tell whether there was one."""
        ref = self._expected.get(key)
        return ref is not None and self._node.discard(ref)

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range; only ranges come from the cache."""
        if byte_range is not None:
            descriptor = self._open(key, byte_range)
            if descriptor is not None:
                try:
                    data = os.pread(descriptor, byte_range[1] - byte_range[0], byte_range[0])
                except OSError:
                    data = b""
                finally:
                    os.close(descriptor)
                if len(data) == byte_range[1] - byte_range[0]:
                    return data
                self._unreadable(key)
        return self._store.get(key, byte_range, max_bytes=max_bytes)

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        """Read a range into a buffer of its size: see Store.get_into."""
        view = check_buffer(key, byte_range, buffer)
        descriptor = self._open(key, byte_range)
        if descriptor is not None:
            if _filled(descriptor, view, byte_range[0]):
                return
            self._unreadable(key)
        self._store.get_into(key, byte_range, buffer)

    def get_piece_into(self, ref: ObjectRef, start: int, piece: ObjectRef, buffer: memoryview) -> None:
        """Read a piece of an object, which begins at byte ``start``, into a buffer of its size.

        It comes from a copy of the object that is there, or else is a copy of its own: the rest is not fetched with it.
        """
        descriptor, at = self._copy(ref), start
        if descriptor is None:
            descriptor, at = self._node.descriptor(ref.key, piece, 0, piece.size, start), 0
        if descriptor is not None:
            if _filled(descriptor, buffer, at):
                return
            self._drop(ref, piece)
            self._bypassed("a copy in it could not be read", ref.key)
        self._store.get_into(ref.key, (start, start + piece.size), buffer)

    def get_piece_afresh_into(self, ref: ObjectRef, start: int, piece: ObjectRef, buffer: memoryview) -> None:
        """Read a piece past the cache, and drop what the cache has of it, which is damaged."""
        self._drop(ref, piece)
        self._store.get_into(ref.key, (start, start + piece.size), buffer)

    def size(self, key: str) -> int:
        """Return the object's size in bytes: that of a copy which is there, else as the store says."""
        ref = self._expected.get(key)
        return ref.size if ref is not None and self._folder.holds(ref) else self._store.size(key)

    def close(self) -> None:
        """End the downloads under way; what has landed stays. Idempotent."""
        self._node.close()

    def _open(self, key: str, byte_range: ByteRange) -> int | None:
        """Return a descriptor of the object's copy in which these bytes are; None: go to the store.

        Who reads again was given damaged bytes: where there are other roots to ask, a copy goes, and they are asked.
        """
        start, stop = byte_range
        ref = self._expected.get(key)
        if ref is None or not 0 <= start < stop <= ref.size:
            return None
        if damaged_copies() and self._store.roots() is not None:
            with suppress(OSError):
                self._folder.discard(ref)
            return None
        return self._node.descriptor(key, ref, start, stop)

    def _copy(self, ref: ObjectRef) -> int | None:
        """Return a descriptor of an object's whole copy, if it is there."""
        try:
            return self._folder.open(ref)
        except OSError:
            return None

    def _drop(self, ref: ObjectRef, piece: ObjectRef) -> None:
        """Drop the copies of an object's piece: its own, and that of the whole object."""
        self._node.discard(piece)
        with suppress(OSError):
            self._folder.discard(ref)

    def _unreadable(self, key: str) -> None:
        """Drop a copy that does not give its bytes: it was cut off, or the disk has a fault."""
        self.discard(key)
        self._bypassed("a copy in it could not be read", key)

    def _bypassed(self, why: str, key: str) -> None:
        with self._mutex:
            if why in self._told:
                return
            self._told.add(why)
        message = f"the cache {self._folder.path} is not used, but the store: {why}"
        self._events.tell(Event(EventKind.CACHE_BYPASSED, self._run, message, key))


def _filled(descriptor: int, view: memoryview, start: int) -> bool:
    """Fill a buffer from a file, which is closed; tell whether the file gave all of it."""
    try:
        return read_into(descriptor, view, start) == view.nbytes
    except OSError:
        return False
    finally:
        os.close(descriptor)


def read_piece(store: Store, ref: ObjectRef, start: int, blake3: str, buffer: memoryview) -> Callable[[], memoryview]:
    """Return what reads a piece of an object into a buffer of its size, which it returns.

    A store's cache, if it has one, gives and keeps the piece alone. Who calls again was given damaged bytes: then it is
    read past the cache, whose copy goes.

    Args:
        store: as the caller has it.
        ref: what the record says of the object.
        start: where the piece begins in it.
        blake3: of the piece.
        buffer: for its bytes.
    """
    if not isinstance(store, CachedStore):
        return partial(filled, store, ref.key, (start, start + len(buffer)), buffer)
    piece = ObjectRef(key=ref.key, size=len(buffer), blake3=blake3)
    ways = chain([store.get_piece_into], repeat(store.get_piece_afresh_into))

    def read() -> memoryview:
        next(ways)(ref, start, piece, buffer)
        return buffer

    return read


def expect(store: Store, refs: Sequence[Stored]) -> None:
    """Announce the objects that are about to be read to a store's cache, if it has one."""
    if isinstance(store, CachedStore):
        store.expect(refs)
