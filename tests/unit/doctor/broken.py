"""Stores that each break one promise of the contract, and no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress

from pulse_registry.errors import AlreadyExists, CorruptObject, NotFound
from pulse_registry.store import MOST_WHOLE_BYTES, Body, ByteRange, MemoryStore, WrapperStore, body_views
from tests.support.waiting import HANG_S


class IgnoringStore(WrapperStore):
    """Takes every create, as a server does that does not know the condition."""

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        self._store.put(key, data)


class RacyStore(WrapperStore):
    """Looks, and then writes: two creates that look at the same time both win. One after the other they don't."""

    def __init__(self, store: MemoryStore, racers: int) -> None:
        super().__init__(store)
        self._looked = threading.Barrier(racers)

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        if if_absent and self._store.exists(key):
            raise AlreadyExists(key)
        if if_absent and "creation/race/" in key:
            with suppress(threading.BrokenBarrierError):
                self._looked.wait(HANG_S)
        self._store.put(key, data)


class ClobberingStore(WrapperStore):
    """Tells one winner, and lets the bytes of a loser replace its object."""

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        try:
            self._store.put(key, data, if_absent=if_absent)
        except AlreadyExists:
            if "creation/race/" in key:
                self._store.put(key, data)
            raise


class RefusingStore(WrapperStore):
    """Refuses every create in a race, and keeps nothing."""

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        if if_absent and "creation/race/" in key:
            raise AlreadyExists(key)
        self._store.put(key, data, if_absent=if_absent)


class PartsStore(WrapperStore):
    """Knows the condition for small objects only."""

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        large = sum(view.nbytes for view in body_views(data)) > 100_000
        self._store.put(key, data, if_absent=if_absent and not large)


class ForgetfulStore(WrapperStore):
    """Refuses a second try, but has lost what the first one wrote when its answer was dropped."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._lost: set[str] = set()

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        if "creation/lost/" in key:
            if key in self._lost:
                raise AlreadyExists(key)
            self._lost.add(key)
            self._store.put(key, b"somebody else")
        else:
            self._store.put(key, data, if_absent=if_absent)


class SlowWriterStore(WrapperStore):
    """Writes an object in two halves, with a pause between them in which others can look."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._read = threading.Event()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        data = self._store.get(key, byte_range, max_bytes=max_bytes)
        self._read.set()
        return data

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        if if_absent:
            self._store.put(key, data, if_absent=True)
            return
        whole = b"".join(body_views(data))
        replaces = self._store.exists(key)
        self._store.put(key, whole[: len(whole) // 2])
        if replaces and "atomicity/" in key:
            self._read.clear()
            self._read.wait(HANG_S)
        self._store.put(key, whole)


class VanishingStore(WrapperStore):
    """Replaces an object by deleting it and writing it anew."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._looked = threading.Event()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        try:
            return self._store.get(key, byte_range, max_bytes=max_bytes)
        finally:
            self._looked.set()

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        if not if_absent and "atomicity/" in key and self._store.exists(key):
            self._store.delete(key)
            self._looked.clear()
            self._looked.wait(HANG_S)
        self._store.put(key, data, if_absent=if_absent)


class StaleReadStore(WrapperStore):
    """Answers a read from the one before."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._seen: dict[str, bytes] = {}

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        if "visibility/read/" not in key:
            return self._store.get(key, byte_range, max_bytes=max_bytes)
        return self._seen.setdefault(key, self._store.get(key))


class StaleMissStore(WrapperStore):
    """Remembers that a key was not there."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._missing: set[str] = set()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        if key in self._missing:
            raise NotFound(key)
        try:
            return self._store.get(key, byte_range, max_bytes=max_bytes)
        except NotFound:
            if "visibility/read/" in key:
                self._missing.add(key)
            raise


class StaleListStore(WrapperStore):
    """Lists a folder as it was the time before."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._before: dict[str, list[str]] = {}

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        keys = [*self._store.list(prefix, after)]
        if "visibility/list/" not in prefix:
            return iter(keys)
        before, self._before[prefix] = self._before.get(prefix, keys), keys
        return iter(before)


class UndeadStore(WrapperStore):
    """Says yes to a delete, and keeps the object for readers."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self._dead: dict[str, bytes] = {}

    def delete(self, key: str) -> None:
        if "visibility/delete/" in key and self._store.exists(key):
            self._dead[key] = self._store.get(key)
        self._store.delete(key)

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        return self._dead[key] if key in self._dead else self._store.get(key, byte_range, max_bytes=max_bytes)


class TreeStore(WrapperStore):
    """Lists by folder names, as a walk of a tree does: `a/b` comes before `a-b`."""

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        return iter(sorted(self._store.list(prefix, after), key=lambda key: key.split("/")))


class UnsortedStore(WrapperStore):
    """Lists a log's last page before its first."""

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        keys = [*self._store.list(prefix, after)]
        middle = 0 if after is not None or "listing/log" not in prefix else len(keys) // 2
        return iter(keys[middle:] + keys[:middle])


class OnePageStore(WrapperStore):
    """Forgets to ask for the second page of a listing."""

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        page = [*self._store.list(prefix, after)]
        return iter(page[:100] if "listing/log" in prefix and after is None else page)


class FromStartStore(WrapperStore):
    """Takes no notice of where a listing is to go on."""

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        return self._store.list(prefix, None if "listing/log" in prefix else after)


class FromKeyStore(WrapperStore):
    """Goes on with the key itself, not after it."""

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        if after is not None and "listing/log" in prefix and self._store.exists(after):
            yield after
        yield from self._store.list(prefix, after)


class NoRangeStore(WrapperStore):
    """Takes no notice of the range."""

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        return self._store.get(key)


class CutRangeStore(WrapperStore):
    """Answers a range past the end with what there is of it."""

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        try:
            return self._store.get(key, byte_range, max_bytes=max_bytes)
        except CorruptObject:
            return self._store.get(key)[slice(*byte_range)] if byte_range else b""
