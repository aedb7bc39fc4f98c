"""Measured read times of a store: they give the prices of one more request, and of a thread's time, in bytes."""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable

from pulse_registry.errors import InvalidArgument
from pulse_registry.store import MOST_WHOLE_BYTES, Buffer, ByteRange, Store, WrapperStore
from pulse_registry.store.prices import DECODE_SECONDS, USUAL, Prices

SMALL_BYTES, LARGE_BYTES = 16 << 10, 256 << 10
"""A read of no more bytes is nearly all latency; one of no fewer tells of the bandwidth."""
_REMEMBERED, _ENOUGH = 64, 5
_LEAST, _MOST = 16 << 10, 16 << 20
_MOST_A_CELL = 64


class ReadTimes:
    """Remembers how long the last reads took. Thread-safe."""

    def __init__(self, object_cost: int | None = None, cell_cost: int | None = None) -> None:
        """Begin without any; ``object_cost``, ``cell_cost``: prices that stand whatever is measured.

        Raises:
            InvalidArgument: one is negative.
        """
        for name, price in (("object_cost", object_cost), ("cell_cost", cell_cost)):
            if price is not None and price < 0:
                raise InvalidArgument(f"{name} is {price}; it is a number of bytes, from 0 on")
        self._object_cost, self._cell_cost = object_cost, cell_cost
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

    def prices(self) -> Prices:
        """Return what was set, or measured; the usual prices until enough was read.

        What is measured is a power of two, so that routes do not flutter with each read: for an object between 16 KiB
        and 16 MiB, for a changed cell up to 64 bytes, or 0.
        """
        with self._lock:
            small, large = list(self._small), list(self._large)
        object_cost, cell_cost = USUAL
        if len(small) >= _ENOUGH and len(large) >= _ENOUGH:
            latency = statistics.median(small)
            # However long the wait was for the first byte, some of the time went into the bytes.
            rate = statistics.median(nbytes / max(seconds - latency, seconds / 10, 1e-9) for nbytes, seconds in large)
            object_cost = _power(min(max(latency * rate, _LEAST), _MOST))
            cell_cost = _power(min(DECODE_SECONDS * rate, _MOST_A_CELL))
        return Prices(
            object_cost if self._object_cost is None else self._object_cost,
            cell_cost if self._cell_cost is None else self._cell_cost,
        )


def _power(worth: float) -> int:
    """Return the largest power of two up to a number of bytes, 0 below one."""
    return 1 << (int(worth).bit_length() - 1) if worth >= 1 else 0


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
