"""The node's cache: processes of one host download each object once, and read it where it lies.

Who gets the lock on an object's part downloads it; the others read its ranges as they land. The lock of a process that
was killed is free at once, and the next one goes on with what is there. Nothing here fails a pull: where the folder
can't be used, the reader goes to the store.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, wait
from contextlib import ExitStack

from pulse_registry.cache.download import Download
from pulse_registry.cache.folder import CacheFolder
from pulse_registry.cache.partial_object import PartialObject
from pulse_registry.format.patch_parts import Stored
from pulse_registry.process.private_files import NotOurs
from pulse_registry.process.scratch import Scratch
from pulse_registry.store import Store

STALL_SECONDS = 60.0
"""A download by another process in which no range has landed for so long is not waited for any more."""
_PAUSES = (0.001, 0.05)
"""The first and the longest pause between two looks at another process's download."""
_LOOKS = 32
"""How often an object is looked for that was there, or on its way, a moment ago."""

Tell = Callable[[str, str], None]


class NodeCache:
    """One process's use of a cache folder: reads, downloads, evictions. Thread-safe."""

    def __init__(
        self,
        folder: CacheFolder,
        store: Store,
        threads: Callable[[], Executor],
        tell: Tell,
        *,
        stall_seconds: float = STALL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            folder: shared with other processes.
            store: where the objects come from.
            threads: makes the threads that download.
            tell: is told why an object, by its key, is not read through the cache.
            stall_seconds: how long to wait for another process in whose download nothing happens.
            clock: monotonic time in seconds.
        """
        self._folder, self._store, self._threads, self._tell = folder, store, threads, tell
        self._stall_seconds, self._clock = stall_seconds, clock
        self._mutex = threading.RLock()
        self._scratch = Scratch()
        self._pool: Executor | None = None
        self._downloads: dict[str, Download] = {}
        self._past: set[str] = set()  # BLAKE3 of objects that are read past the cache
        self._spoilt: set[str] = set()  # and of those that were damaged by a process before this one
        self._closed = threading.Event()

    def descriptor(self, key: str, ref: Stored, start: int, stop: int, begin: int = 0) -> int | None:
        """Return a new descriptor to read bytes of an object from, once they are there; None: go to the store.

        Args:
            key: of the object.
            ref: what the record says of it.
            start: of the bytes.
            stop: of the bytes.
            begin: where the object begins in what lies under the key, of which it may be a piece.

        Raises:
            NotFound, CorruptObject, AccessDenied, StoreUnavailable: as the store.
        """
        try:
            for _ in range(_LOOKS):
                found = self._folder.open(ref)
                if found is None and (ref.blake3 in self._past or self._closed.is_set()):
                    return None
                if found is None:
                    found = self._landing(key, ref, start, stop, begin)
                if found is not None:
                    return found
            self.bypass(key, ref, "objects are removed from it before they can be read; it is too small")
        except OSError as error:
            self.bypass(key, ref, _reason(error))
        return None

    def discard(self, ref: Stored) -> bool:
        """Drop an object, which is damaged here or in the store; tell whether it was there."""
        with self._mutex:
            download = self._downloads.get(ref.blake3)
            self._past.discard(ref.blake3)
        if download is not None:
            wait([download.whole])
        with self._mutex:
            spoilt = ref.blake3 in self._spoilt
            self._spoilt.discard(ref.blake3)
        try:
            return self._folder.discard(ref) or spoilt
        except OSError:
            return spoilt

    def bypass(self, key: str, ref: Stored, why: str) -> None:
        """Read an object past the cache from now on."""
        with self._mutex:
            self._past.add(ref.blake3)
        self._tell(why, key)

    def close(self) -> None:
        """End the downloads under way. Idempotent."""
        self._closed.set()
        with self._mutex:
            pool, under_way = self._pool, list(self._downloads.values())
        for download in under_way:
            download.stop()
        wait([download.whole for download in under_way])
        if pool is not None:
            pool.shutdown()

    def _landing(self, key: str, ref: Stored, start: int, stop: int, begin: int) -> int | None:
        """Wait for bytes of an object that is not whole yet, whoever downloads it; None: look again."""
        with self._mutex:
            download = self._downloads.get(ref.blake3)
        if download is None:
            part = PartialObject(self._folder, ref)
            with ExitStack() as stack:
                stack.callback(part.close)
                if not part.lock():
                    return self._watch(key, part, start, stop)
                download = self._begin(key, part, begin)
                if download is not None:
                    stack.pop_all()  # it closes the part
        elif download.has_failed:
            wait([download.whole])  # who comes after the failure tries again
            download = None
        if download is None:
            return None
        download.wait(start, stop)
        return download.part.duplicate()

    def _begin(self, key: str, part: PartialObject, begin: int) -> Download | None:
        """Download an object to its part, which is locked; None if somebody was faster."""
        there = self._folder.open(part.ref)
        if there is not None:
            os.close(there)
            part.remove()
        if there is not None or not part.is_named():
            return None
        try:
            part.begin()
        except OSError:
            part.remove()
            raise
        with self._mutex:  # so that it does not end before it is known
            self._pool = self._pool or self._threads()
            download = Download(part, key, self._store, self._pool, self._scratch, self._ended, begin)
            if not download.whole.done():
                self._downloads[part.ref.blake3] = download
            return download

    def _ended(self, part: PartialObject, key: str, whole: bool | BaseException) -> None:
        with self._mutex:
            self._downloads.pop(part.ref.blake3, None)
            if whole is False and part.resumed:
                self._spoilt.add(part.ref.blake3)
        if isinstance(whole, OSError):
            self.bypass(key, part.ref, _reason(whole))
        elif whole is False and not part.resumed:
            self.bypass(key, part.ref, "what the store gave is not what was committed")

    def _watch(self, key: str, part: PartialObject, start: int, stop: int) -> int | None:
        """Wait for bytes that another process, or thread, downloads; None: look again."""
        seen, since, pause = -1, self._clock(), _PAUSES[0]
        while not self._closed.is_set():
            if part.has(start, stop):
                return part.duplicate()
            if part.lock() or not part.is_named():
                return None  # it was finished, given up, or its process has died
            landed = part.progress()
            if landed != seen:
                seen, since = landed, self._clock()
            if self._clock() - since > self._stall_seconds:
                self.bypass(key, part.ref, "another process began its download, and nothing of it comes any more")
                return None
            self._closed.wait(pause)
            pause = min(2 * pause, _PAUSES[1])
        return None


def _reason(error: OSError) -> str:
    """Return why a folder can't be used, without the file's name: each reason is told once."""
    why = error.strerror or str(error)
    return f"a file in it was refused: {why}" if isinstance(error, NotOurs) else why
