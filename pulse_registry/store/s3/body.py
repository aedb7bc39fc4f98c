"""Bodies of S3 transfers: sent in blocks without a copy, received into a buffer, neither slower than a limit."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from functools import partial
from http.client import HTTPResponse
from typing import Any, Final

from pulse_registry.errors import StoreUnavailable
from pulse_registry.store.watchdog import LowSpeedLimit, TransferWatchdog

READ_BYTES: Final = 1 << 20
SEND_BYTES: Final = 256 << 10


def receive(body: Any, stream: Any, into: memoryview, limit: LowSpeedLimit, what: str) -> None:
    """Read exactly a buffer full out of an answer, which is closed if it does not come to its end.

    Args:
        body: the `StreamingBody` of an answer. It reads until a count is reached, however slowly it comes.
        stream: urllib3's response under it, which gives what has come.
        into: where its bytes go.
        limit: below it the transfer is given up.
        what: the transfer, for messages.

    Raises:
        StoreUnavailable: it ended early, or stalled.
        Errors of urllib3 and the network pass.
    """
    done, below = False, response_below(stream, into.nbytes)
    read = partial(_copy_into, stream) if below is None else below.fp.readinto1
    try:
        if into.nbytes >= limit.bytes_per_s * limit.window_s:
            body.set_socket_timeout(limit.window_s)
        watchdog, at = TransferWatchdog(limit, what), 0
        while at < into.nbytes:
            got = read(into[at:])
            if not got:
                raise StoreUnavailable(f"{what}: cut after {at} of {into.nbytes} bytes; try again")
            at += got
            watchdog.add(got)
        if below is not None:
            below.close()  # so that its connection may be used again, which is given back
            stream.release_conn()
        done = True
    finally:
        if not done:
            body.close()


def response_below(stream: Any, nbytes: int) -> HTTPResponse | None:
    """Return http.client's response below urllib3's, unread, if its body is the bytes themselves, and so many.

    It reads into a buffer. urllib3, which has no public name for it, gives out bytes in objects of its own: with eight
    threads these take fresh pages each time, and with the copy a fifth of the CPU of a pull.
    """
    found = getattr(stream, "_fp", None)
    return found if isinstance(found, HTTPResponse) and found.fp is not None and found.length == nbytes else None


def _copy_into(stream: Any, view: memoryview) -> int:
    got: bytes = stream.read1(min(READ_BYTES, view.nbytes))
    view[: len(got)] = got
    return len(got)


class Parcel:
    """Buffers as the body of a request, without joining them: what botocore takes for a file.

    It can be read again from its start, as botocore does where a bucket turns out to be in another region.
    """

    def __init__(self, views: Sequence[memoryview], limit: LowSpeedLimit, what: str) -> None:
        """Wrap buffers.

        Args:
            views: flat byte views, none empty.
            limit: below it the transfer is given up.
            what: the transfer, for messages.
        """
        self._blocks = [view[at : at + SEND_BYTES] for view in views for at in range(0, view.nbytes, SEND_BYTES)]
        self._size = sum(view.nbytes for view in views)
        self._limit = limit
        self._what = what
        self._next = self._at = 0
        self._watchdog: TransferWatchdog | None = None

    def __len__(self) -> int:
        """Return the size in bytes."""
        return self._size

    def read(self, _: int = -1) -> memoryview:
        """Return the next block, whatever its size: the client sends what it gets, and larger blocks cost it less."""
        if self._next == len(self._blocks):
            return memoryview(b"")
        if self._watchdog is None:
            self._watchdog = TransferWatchdog(self._limit, self._what)
        else:
            self._watchdog.add(self._blocks[self._next - 1].nbytes)
        block = self._blocks[self._next]
        self._next += 1
        self._at += block.nbytes
        return block

    def tell(self) -> int:
        """Return how many bytes were read."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to the start, or, for those who look for the size, to the end."""
        if (offset, whence) == (0, 0):
            self._next = self._at = 0
            self._watchdog = None
        elif (offset, whence) == (0, 2):
            self._next, self._at = len(self._blocks), self._size
        elif (offset, whence) != (self._at, 0):
            raise OSError("a parcel is read from its start only")
        return self._at


def crc32(views: Sequence[memoryview]) -> str:
    """Return the CRC32 of buffers as S3 writes it: big-endian, in base64."""
    value = 0
    for view in views:
        value = zlib.crc32(view, value)
    return base64.b64encode(value.to_bytes(4, "big")).decode()
