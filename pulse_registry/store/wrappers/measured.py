"""Measured read times of a store: they give the price of one more request, in bytes.

While a request waits for its answer, its connection could have carried latency x bandwidth bytes: so many bytes more
are a fair price for one object less.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable

from pulse_registry.errors import InvalidArgument
from pulse_registry.store import MOST_WHOLE_BYTES, Buffer, ByteRange, Store, WrapperStore

DEFAULT_OBJECT_COST = 65536
"""Bytes that one more object to fetch is worth: about what a link carries while a request is under way."""
SMALL_BYTES, LARGE_BYTES = 16 << 10, 256 << 10
"""A read of no more bytes is nearly all latency; one of no fewer tells of the bandwidth."""
_REMEMBERED, _ENOUGH = 64, 5
_LEAST, _MOST = 16 << 10, 16 << 20


class ReadTimes:
    """Remembers how long the last reads took. Thread-safe."""

    def __init__(self, object_cost: int | None = None) -> None:
        """Begin without any; ``object_cost``: a price that stands whatever is measured.

        Raises:
            InvalidArgument: it is negative.
        """
        if object_cost is not None and object_cost < 0:
            raise InvalidArgument(f"object_cost is {object_cost}; it is a number of bytes, from 0 on")
        self._fixed = object_cost
        self._lock = threading.Lock()
        self._small: deque[float] = deque(maxlen=_REMEMBERED)
        self._large: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)

    def note(self, nbytes: int, seconds: float) -> None:
        """Note a read that succeeded."""
        with self._lock:
            if nbytes <= SMALL_BYTES:
                self._small.append(seconds)
            elif nbytes >= LARGE_BYTES:
                self._large.append((nbytes, seconds))

    def object_cost(self) -> int:
        """Return what an object is worth in bytes: what was set, or measured; the usual value until enough was read.

        What is measured is a power of two between 16 KiB and 16 MiB, so that routes do not flutter with each read.
        """
        if self._fixed is not None:
            return self._fixed
        with self._lock:
            small, large = list(self._small), list(self._large)
        if len(small) < _ENOUGH or len(large) < _ENOUGH:
            return DEFAULT_OBJECT_COST
        latency = statistics.median(small)
        # However long the wait was for the first byte, some of the time went into the bytes.
        rate = statistics.median(nbytes / max(seconds - latency, seconds / 10, 1e-9) for nbytes, seconds in large)
        return 1 << (round(min(max(latency * rate, _LEAST), _MOST)).bit_length() - 1)


class MeasuredStore(WrapperStore):
    """A store whose reads are timed."""

    def __init__(self, store: Store, times: ReadTimes, clock: Callable[[], float] = time.perf_counter) -> None:
        """Wrap a store; ``times`` is told of its reads."""
        super().__init__(store)
        self._times, self._clock = times, clock

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range, and note the time."""
        began = self._clock()
        data = self._store.get(key, byte_range, max_bytes=max_bytes)
        self._times.note(len(data), self._clock() - began)
        return data

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        """Read a range into a buffer, and note the time: see Store.get_into."""
        began = self._clock()
        self._store.get_into(key, byte_range, buffer)
        self._times.note(byte_range[1] - byte_range[0], self._clock() - began)
