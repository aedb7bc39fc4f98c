"""The requests that were made of a store, and the same ones made again, with nothing between them.

What a push or a pull takes beyond these is its own: coding, checking, waiting for itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pulse_registry.errors import NotFound
from pulse_registry.store import Store
from pulse_registry.store.base import MOST_WHOLE_BYTES
from pulse_registry.store.body import Body, body_views
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.wrappers.wrapper import WrapperStore


@dataclass(frozen=True, slots=True)
class Request:
    """One request, and when it was under way: seconds of one clock.

    Attributes:
        again: makes it again, of a store and with what a put's key is to begin with.
        began: when it was asked.
        ended: when its answer was there.
    """

    again: Callable[[Store, str], object]
    began: float
    ended: float


class RequestStore(WrapperStore):
    """Keeps each `get` and `put` that goes through it. Thread-safe."""

    def __init__(self, store: Store) -> None:
        """Wrap a store."""
        super().__init__(store)
        self._made: list[Request] = []
        self._lock = threading.Lock()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes."""
        with self._kept(lambda store, _: store.get(key, byte_range, max_bytes=max_bytes)):
            return super().get(key, byte_range, max_bytes=max_bytes)

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object; what is kept is a copy of it."""
        copy = b"".join(body_views(data))
        with self._kept(lambda store, prefix: store.put(prefix + key, copy, if_absent=if_absent)):
            super().put(key, copy, if_absent=if_absent)

    def taken(self) -> list[Request]:
        """Return the requests since the last call of this, in the order in which they were asked."""
        with self._lock:
            made, self._made = self._made, []
        return sorted(made, key=lambda one: one.began)

    @contextmanager
    def _kept(self, again: Callable[[Store, str], object]) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._made.append(Request(again, began, time.perf_counter()))


def make_again(store: Store, requests: Sequence[Request], prefix: str) -> None:
    """Make requests again, each as soon as those have ended that had ended before it was asked.

    Args:
        store: of the first ones' objects.
        requests: in the order in which they were asked.
        prefix: of the keys of what is put now. What was not there must not be there yet.
    """

    def wait(request: Request, before: Sequence[Future[Any]]) -> None:
        for one in before:
            one.result()
        with suppress(NotFound):
            request.again(store, prefix)

    with ThreadPoolExecutor(max(1, len(requests))) as pool:
        made: list[Future[Any]] = []
        for request in requests:
            before = [f for f, other in zip(made, requests, strict=False) if other.ended <= request.began]
            made.append(pool.submit(wait, request, before))
        for future in made:
            future.result()
