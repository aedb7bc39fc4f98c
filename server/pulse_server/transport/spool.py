"""Spool of uploads through the service: each arrives in a file first, and only then is put into the store.

A body comes as slowly as its sender likes. What it takes meanwhile is of its sender's own share, of objects and of
bytes on this machine's disk; a place before the store, of which there are few for all, it takes once it is there whole.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from http import HTTPStatus
from tempfile import TemporaryFile
from typing import IO, Final

from pulse_registry.errors import StoreUnavailable
from pulse_registry.process.temporary_folder import temporary_folder
from pulse_registry.store import Store, Stream
from pulse_server.errors import InvalidRequest
from pulse_server.scheduling.threads import in_thread
from pulse_server.scheduling.turns import Turns

CHUNK: Final = 1 << 20
"""Of each body, in memory: a sender may have dozens on their way."""

_RUNS_AT_ONCE: Final = 4
"""What one sender may take for all runs, in shares of one run: a run that fills its share leaves others theirs."""

_AT_ONCE: Final = 8
_OF_ONE: Final = 6
"""At a time: writes to this machine's disk, and puts into the store; and of one sender."""
THREADS: Final = 2 * _AT_ONCE


class Spool:
    """Receives objects into files, and puts them into the store. Not thread-safe: one event loop asks."""

    def __init__(self, pool: Executor, *, objects: int, nbytes: int) -> None:
        """Prepare.

        Args:
            pool: `THREADS` threads for the disk and the store.
            objects: that one sender sends for one run at a time; more of them wait in line.
            nbytes: of these objects, as announced. One that is longer goes alone.
        """
        self._pool, self._objects, self._nbytes = pool, objects, nbytes
        self._shares: dict[tuple[str, ...], _Share] = {}
        self._writes, self._puts = Turns(_AT_ONCE, _OF_ONE), Turns(_AT_ONCE, _OF_ONE)

    def __len__(self) -> int:
        """Return how many shares are in use, or waited for."""
        return len(self._shares)

    async def put(
        self, store: Store, key: str, body: AsyncIterable[bytes], nbytes: int, *, sender: str, run: str
    ) -> None:
        """Receive an object, and create it; a put that has begun goes on to its end even if this is cancelled.

        Args:
            store: the run's.
            key: the object's key in it.
            body: its bytes, as they come; not asked for before there is room for all of them.
            nbytes: how many were announced.
            sender: whose share they take.
            run: of which run.

        Raises:
            InvalidRequest: the body is not as long as was announced.
            AlreadyExists: the key is taken.
            StoreUnavailable: the store failed, or this machine's disk.
        """
        # The run's share first: who waits for it holds nothing that another run could use.
        async with self._room(1, nbytes, sender, run), self._room(_RUNS_AT_ONCE, nbytes, sender):
            with _new_file() as file:
                await self._receive(body, file, nbytes, sender)
                stream = _FileStream(file, nbytes)
                async with self._puts.turn(sender):
                    put = in_thread(self._pool, store.put, key, stream, if_absent=True)
                    await _to_its_end(asyncio.ensure_future(put))

    async def _receive(self, body: AsyncIterable[bytes], file: IO[bytes], announced: int, sender: str) -> None:
        size, pending = 0, bytearray()

        async def write() -> None:
            async with self._writes.turn(sender):
                await _to_its_end(asyncio.ensure_future(in_thread(self._pool, _write, file, bytes(pending))))
            pending.clear()

        async for piece in body:
            size += len(piece)
            if size > announced:
                break
            pending += piece
            if len(pending) >= CHUNK:
                await write()
        if size != announced:
            came = f"{size} came" if size < announced else "more came"
            raise InvalidRequest(f"{announced} bytes were announced, and {came}", HTTPStatus.BAD_REQUEST)
        await write()

    @asynccontextmanager
    async def _room(self, times: int, nbytes: int, *whose: str) -> AsyncIterator[None]:
        share = self._shares.get(whose)
        if share is None:
            share = self._shares[whose] = _Share(times * self._objects, times * self._nbytes)
        share.users += 1
        try:
            async with share.hold(nbytes):
                yield
        finally:
            share.users -= 1
            if not share.users:
                del self._shares[whose]


class _Share:
    """So many objects, and bytes of them, at a time; more wait in the order in which they came."""

    def __init__(self, objects: int, nbytes: int) -> None:
        self.users = 0
        self._free_objects, self._free_bytes, self._all_bytes = objects, nbytes, nbytes
        self._line = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def hold(self, nbytes: int) -> AsyncIterator[None]:
        nbytes = min(nbytes, self._all_bytes)
        async with self._line:
            while not self._free_objects or self._free_bytes < nbytes:
                self._freed.clear()
                await self._freed.wait()
            self._free_objects -= 1
            self._free_bytes -= nbytes
        try:
            yield
        finally:
            self._free_objects += 1
            self._free_bytes += nbytes
            self._freed.set()


class _FileStream(Stream):
    """An object's bytes, from the open file that they arrived in, which has no name: nobody else comes to it."""

    def __init__(self, file: IO[bytes], nbytes: int) -> None:
        self._file, self.nbytes = file, nbytes

    def __iter__(self) -> Iterator[bytes]:
        at, descriptor = 0, os.dup(self._file.fileno())  # of its own: it may be read from twice, and outlive the file
        try:
            while piece := os.pread(descriptor, CHUNK, at):
                at += len(piece)
                yield piece
        finally:
            os.close(descriptor)


@contextmanager
def _new_file() -> Iterator[IO[bytes]]:
    with ExitStack() as stack:
        with _disk():
            file = stack.enter_context(TemporaryFile(dir=temporary_folder()))
        yield file


def _write(file: IO[bytes], data: bytes) -> None:
    with _disk():
        file.write(data)
        file.flush()


@contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"objects that are uploaded can't be kept in {temporary_folder()}: {error}") from error


async def _to_its_end(upload: asyncio.Future[None]) -> None:
    """Wait for an upload, even if this is cancelled meanwhile: its file must stay until it has ended."""
    try:
        await asyncio.shield(upload)
    except asyncio.CancelledError:
        await asyncio.wait((upload,))
        raise
