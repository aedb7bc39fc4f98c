from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from blake3 import blake3

from pulse_registry.cache import CachedStore, CacheFolder
from pulse_registry.events import Events
from pulse_registry.store import MemoryStore
from pulse_registry.testing import StoreTests, Subject
from pulse_schemas import ObjectRef

_names = (f"test-conformance-cached-{number}" for number in itertools.count())


class TestCachedStore(StoreTests):
    """Objects that are put past it are expected, and so read through the cache; keys that are put are not."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Iterator[Subject]:
        below = MemoryStore(next(_names))
        cached = CachedStore(below, CacheFolder(tmp_path, 10**9), "run", Events(None), lambda: ThreadPoolExecutor(2))

        def raw_set(key: str, data: bytes) -> None:
            below.put(key, data)
            cached.expect([ObjectRef(key=key, size=len(data), blake3=blake3(data).hexdigest())])

        yield Subject(cached, raw_get=below.get, raw_set=raw_set)
        cached.close()
