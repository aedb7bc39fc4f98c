from __future__ import annotations

import itertools

import pytest

from pulse_registry.errors import InvalidArgument
from pulse_registry.store import MemoryStore, RunStore
from pulse_registry.store.gateway import Gateway
from pulse_schemas import BASES

KEY = f"{BASES}{'c' * 64}-0000/model.safetensors"
_names = (f"test-run-store-{number}" for number in itertools.count())


def a_root() -> MemoryStore:
    root = MemoryStore(next(_names))
    root.put("math/head", b"1")
    root.put(KEY, b"12345678")
    return root


def test_keys_of_bases_are_the_roots_and_all_others_are_the_runs() -> None:
    store = RunStore(a_root(), "math")
    buffer = bytearray(2)
    store.get_into(KEY, (2, 4), buffer)
    assert (store.get(KEY, (1, 3)), store.size(KEY), store.exists(KEY), bytes(buffer)) == (b"23", 8, True, b"34")
    assert (store.get("head"), store.exists("math/head")) == (b"1", False)
    assert [*store.list("")] == ["head"]
    assert store.modified(KEY)


def test_a_run_neither_writes_nor_deletes_a_base() -> None:
    root = a_root()
    store = RunStore(root, "math")
    with pytest.raises(InvalidArgument, match="shared base"):
        store.put(KEY, b"other")
    with pytest.raises(InvalidArgument, match="shared base"):
        store.delete(KEY)
    assert root.get(KEY) == b"12345678"


@pytest.mark.parametrize("key", [f"{BASES}../other/head", f"{BASES}/head", f"{BASES}./head", BASES])
def test_a_key_that_begins_like_a_bases_leads_nowhere_else(key: str) -> None:
    with pytest.raises(InvalidArgument):
        RunStore(a_root(), "math").get(key)


def test_of_a_service_keys_of_bases_stay_below_the_run() -> None:
    class Service(MemoryStore):
        def gateway(self) -> Gateway | None:
            return self  # type: ignore[return-value]

    service = Service(next(_names))
    service.put(f"math/{KEY}", b"1")
    assert RunStore(service, "math").get(KEY) == b"1"
