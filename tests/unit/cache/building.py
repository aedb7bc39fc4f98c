"""What the cache's tests share: objects in a store, and views of it through one folder, as processes have them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from blake3 import blake3

from pulse_registry.cache import CachedStore, CacheFolder
from pulse_registry.cache.folder import LEDGER
from pulse_registry.events import Event, Events
from pulse_registry.store import ByteRange, Store
from pulse_registry.testing import CountingStore
from pulse_schemas import ObjectRef
from tests.support.records import DictStore

RUN = "run"


class Downloads(ThreadPoolExecutor):
    """The threads that download, and what they were given to do."""

    def __init__(self) -> None:
        super().__init__(4)
        self.futures: list[Future[Any]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.futures.append(super().submit(function, *args, **kwargs))
        return self.futures[-1]


class Node:
    """A store with some objects, and one process' view of it through a cache.

    Attributes:
        store: counts what goes to the store.
        view: through the cache.
        events: that were told.
    """

    def __init__(self, path: Path, limit: int = 10**9, store: Store | None = None, **folder: object) -> None:
        self.path = path
        self.objects = DictStore()
        self.store = CountingStore(store or self.objects)
        self.events: list[Event] = []
        self.folder = CacheFolder(path, limit, **folder)  # type: ignore[arg-type]
        self.downloads = Downloads()
        self.view = CachedStore(self.store, self.folder, RUN, Events(self.events.append), lambda: self.downloads)

    def add(self, number: int, size: int) -> ObjectRef:
        """Store an object, and expect to read it."""
        ref = an_object(self.objects, number, size)
        self.view.expect([ref])
        return ref

    def read(self, ref: ObjectRef, span: ByteRange | None = None) -> bytes:
        """Read an object, or bytes of it, through the cache."""
        return self.view.get(ref.key, span or (0, ref.size))

    def settle(self) -> None:
        """Wait for downloads to have come to their ends."""
        while self.downloads.futures:
            self.downloads.futures.pop().exception()

    @property
    def whole(self) -> set[str]:
        """Names of the whole objects in the folder."""
        return {file.name for file in self.path.iterdir() if len(file.name) == 64}

    @property
    def parts(self) -> set[str]:
        """Names of the objects on their way in the folder."""
        return {file.name for file in self.path.iterdir() if file.name.endswith(".part")}


def data_of(number: int, size: int) -> bytes:
    """Return an object's bytes: no two objects share them, nor two ranges of one."""
    return blake3(f"{number}".encode()).digest(size)


def an_object(store: Store, number: int, size: int) -> ObjectRef:
    """Store an object and return its reference."""
    data = data_of(number, size)
    ref = ObjectRef(key=f"objects/patch/{number}", size=size, blake3=blake3(data).hexdigest())
    store.put(ref.key, data)
    return ref


def taken(path: Path) -> int:
    """Return the bytes that a folder's objects take, whole ones and those on their way."""
    sizes = [file.stat().st_size for file in path.iterdir() if file.name != LEDGER]
    return sum(sizes)


def ticking() -> itertools.count[int]:
    """Return a clock's readings, each later than the one before."""
    return itertools.count(1_000_000)
