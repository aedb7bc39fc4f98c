"""A store that counts and times its calls for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from pulse_registry.errors import PulseError
from pulse_registry.store.base import MOST_WHOLE_BYTES, Store, Verb
from pulse_registry.store.body import Body
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.wrappers.wrapper import Listing, WrapperStore
from pulse_server.telemetry.metrics import Metrics


class MetricsStore(WrapperStore):
    """Counts and times the calls of a store, by verb and by how they end. Goes beneath retries."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        """Wrap a store."""
        super().__init__(store)
        self._metrics = metrics

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range, and count the call."""
        with self._counted("get"):
            return super().get(key, byte_range, max_bytes=max_bytes)

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object, and count the call."""
        with self._counted("put"):
            super().put(key, data, if_absent=if_absent)

    def exists(self, key: str) -> bool:
        """Tell whether the object is there, and count the call."""
        with self._counted("exists"):
            return super().exists(key)

    def size(self, key: str) -> int:
        """Return the object's size, and count the call."""
        with self._counted("size"):
            return super().size(key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over keys; one call, timed to its first key, however many keys come."""
        return self._listed(self._store.list, prefix, after)

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over folders, counted as `list`, which is the same request."""
        return self._listed(self._store.folders, prefix, after)

    def delete(self, key: str) -> None:
        """Remove an object, and count the call."""
        with self._counted("delete"):
            super().delete(key)

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, and count the call as `size`, which is the same request."""
        with self._counted("size"):
            return super().modified(key)

    def _listed(self, listing: Listing, prefix: str, after: str | None) -> Iterator[str]:
        with self._counted("list"):
            keys = listing(prefix, after)
            first = next(keys, None)
        return iter(()) if first is None else _chain(first, keys)

    @contextmanager
    def _counted(self, verb: Verb) -> Iterator[None]:
        began, outcome = time.perf_counter(), "ok"
        try:
            yield
        except PulseError as error:
            outcome = type(error).__name__
            raise
        finally:
            self._metrics.store_calls.labels(verb, outcome).inc()
            self._metrics.store_seconds.labels(verb).observe(time.perf_counter() - began)


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest
