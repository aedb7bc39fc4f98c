from __future__ import annotations

import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulse_registry.errors import AlreadyExists, InvalidArgument
from pulse_registry.store import MemoryStore, Store, open_store

_names = (f"test-memory-{number}" for number in itertools.count())


def test_stores_of_the_same_name_share_their_objects_and_others_do_not() -> None:
    name = next(_names)
    open_store(f"memory://{name}/sub/").put("key", b"data")
    assert MemoryStore(f"{name}/sub").get("key") == b"data"
    assert MemoryStore(name).get("sub/key") == b"data"
    assert not MemoryStore(f"{name}/su").exists("key")
    assert [*MemoryStore(next(_names)).list("")] == []


def test_one_thread_wins_a_create_even_if_threads_switch_at_every_step() -> None:
    racers, usual = 8, sys.getswitchinterval()
    stores = [MemoryStore("test-memory-switch") for _ in range(racers)]
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(racers) as pool:
            for turn in range(100):
                start = threading.Barrier(racers)

                def create(store: Store, key: str = f"race/{turn}", start: threading.Barrier = start) -> bool:
                    start.wait()
                    try:
                        store.put(key, b"data", if_absent=True)
                    except AlreadyExists:
                        return False
                    return True

                assert sum(pool.map(create, stores)) == 1
    finally:
        sys.setswitchinterval(usual)


def test_an_object_can_not_be_the_folder_of_another() -> None:
    store = MemoryStore(next(_names))
    store.put("a", b"")
    with pytest.raises(InvalidArgument, match="folder"):
        store.put("a/b/c", b"")


@pytest.mark.parametrize("name", ["", "/a", "a//b", "..", "a\0"])
def test_a_name_that_is_no_key_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        MemoryStore(name)
