"""A store behind a slow link: latency for each call, and a bandwidth that all calls share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime

from pulse_registry.errors import InvalidArgument
from pulse_registry.store.base import MOST_WHOLE_BYTES, Store
from pulse_registry.store.body import Body, body_size
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.wrappers.wrapper import WrapperStore


class LatencyStore(WrapperStore):
    """Delays calls as a link of a given latency and bandwidth would.

    Each call waits for the latency once. The bytes of `put` and `get` queue for a link up and a link down,
    each as fast as the bandwidth, so that calls in parallel share it. Keys and answers without data weigh
    nothing.
    """

    def __init__(
        self,
        store: Store,
        *,
        latency_s: float,
        bytes_per_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Wrap a store.

        Args:
            store: the store at the other end.
            latency_s: seconds for each call, whatever its size.
            bytes_per_s: bandwidth in each direction; None for no bound.
            clock: monotonic time in seconds.
            sleep: what waits.

        Raises:
            InvalidArgument: the latency is negative or the bandwidth not positive.
        """
        if latency_s < 0 or (bytes_per_s is not None and bytes_per_s <= 0):
            raise InvalidArgument("latency_s must not be negative, and bytes_per_s must be positive")
        super().__init__(store)
        self._latency_s = latency_s
        self._sleep = sleep
        self._up = _Link(bytes_per_s, clock)
        self._down = _Link(bytes_per_s, clock)

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes after the time that the link takes."""
        self._sleep(self._latency_s)
        data = super().get(key, byte_range, max_bytes=max_bytes)
        self._transfer(self._down, len(data))
        return data

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object after the time that the link takes."""
        self._sleep(self._latency_s)
        self._transfer(self._up, body_size(data))
        super().put(key, data, if_absent=if_absent)

    def exists(self, key: str) -> bool:
        """Tell whether the object is there, after the latency."""
        self._sleep(self._latency_s)
        return super().exists(key)

    def size(self, key: str) -> int:
        """Return the object's size, after the latency."""
        self._sleep(self._latency_s)
        return super().size(key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over keys, after the latency."""
        self._sleep(self._latency_s)
        return super().list(prefix, after)

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over folders, after the latency."""
        self._sleep(self._latency_s)
        return self._store.folders(prefix, after)

    def delete(self, key: str) -> None:
        """Remove an object, after the latency."""
        self._sleep(self._latency_s)
        super().delete(key)

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, after the delay: see Store.modified."""
        self._sleep(self._latency_s)
        return super().modified(key)

    def _transfer(self, link: _Link, size: int) -> None:
        """Wait until the link has carried so many bytes."""
        wait = link.reserve(size)
        if wait > 0:
            self._sleep(wait)


class _Link:
    """One direction of a link: transfers follow one another."""

    def __init__(self, bytes_per_s: float | None, clock: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = 0.0

    def reserve(self, size: int) -> float:
        """Queue a transfer, and return in how many seconds it is through."""
        if self._bytes_per_s is None:
            return 0.0
        with self._lock:
            now = self._clock()
            self._free_at = max(now, self._free_at) + size / self._bytes_per_s
            return self._free_at - now
