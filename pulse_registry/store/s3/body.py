"""Bodies on their way: out in blocks that are not copied, in straight to a buffer, neither slower than a given pace."""

from __future__ import annotations

import base64
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pulse_registry.errors import InvalidArgument, StoreUnavailable

READ_BYTES: Final = 1 << 20
SEND_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Pace:
    """The least that a transfer must bring: ``min_bytes_per_s``, over every ``window_s``."""

    min_bytes_per_s: float = 64 << 10
    window_s: float = 10.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            InvalidArgument: one is not positive.
        """
        if min(self.min_bytes_per_s, self.window_s) <= 0:
            raise InvalidArgument("min_bytes_per_s and window_s must be positive")


class Meter:
    """Watches one transfer."""

    def __init__(self, pace: Pace, what: str) -> None:
        """Begin.

        Args:
            pace: what is asked of it.
            what: the transfer, for the message.
        """
        self._pace = pace
        self._what = what
        self._since = pace.clock()
        self._bytes = 0

    def add(self, nbytes: int) -> None:
        """Count bytes that have gone through.

        Raises:
            StoreUnavailable: fewer than the pace asks for did in the last window.
        """
        self._bytes += nbytes
        now = self._pace.clock()
        passed = now - self._since
        if passed < self._pace.window_s:
            return
        if self._bytes < self._pace.min_bytes_per_s * passed:
            raise StoreUnavailable(
                f"{self._what}: stalled: {self._bytes} bytes in {passed:.1f} s, which is given up under "
                f"{self._pace.min_bytes_per_s:.0f} bytes/s; try again"
            )
        self._since, self._bytes = now, 0


def receive(body: Any, stream: Any, into: memoryview, pace: Pace, what: str) -> None:
    """Read exactly a buffer full out of an answer, which is closed if it does not come to its end.

    Args:
        body: the `StreamingBody` of an answer. It reads until a count is reached, however slowly it comes.
        stream: urllib3's response under it, which gives what has come.
        into: where its bytes go.
        pace: below it the transfer is given up.
        what: the transfer, for messages.

    Raises:
        StoreUnavailable: it ended early, or stalled.
        Errors of urllib3 and the network pass.
    """
    done = False
    try:
        if into.nbytes >= pace.min_bytes_per_s * pace.window_s:
            body.set_socket_timeout(pace.window_s)
        meter, at = Meter(pace, what), 0
        while at < into.nbytes:
            got = stream.read1(min(READ_BYTES, into.nbytes - at))
            if not got:
                raise StoreUnavailable(f"{what}: cut after {at} of {into.nbytes} bytes; try again")
            into[at : at + len(got)] = got
            at += len(got)
            meter.add(len(got))
        done = True
    finally:
        if not done:
            body.close()


class Parcel:
    """Buffers as the body of a request, without joining them: what botocore takes for a file.

    It can be read again from its start, as botocore does where a bucket turns out to be in another region.
    """

    def __init__(self, views: Sequence[memoryview], pace: Pace, what: str) -> None:
        """Wrap buffers.

        Args:
            views: flat byte views, none empty.
            pace: below it the transfer is given up.
            what: the transfer, for messages.
        """
        self._blocks = [view[at : at + SEND_BYTES] for view in views for at in range(0, view.nbytes, SEND_BYTES)]
        self._size = sum(view.nbytes for view in views)
        self._pace = pace
        self._what = what
        self._next = self._at = 0
        self._meter: Meter | None = None

    def __len__(self) -> int:
        """Return the size in bytes."""
        return self._size

    def read(self, _: int = -1) -> memoryview:
        """Return the next block, whatever its size: the client sends what it gets, and larger blocks cost it less."""
        if self._next == len(self._blocks):
            return memoryview(b"")
        if self._meter is None:
            self._meter = Meter(self._pace, self._what)
        else:
            self._meter.add(self._blocks[self._next - 1].nbytes)
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
            self._meter = None
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
