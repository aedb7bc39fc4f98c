"""Requests made again: the same ones, of the same objects, in an order that the first ones could have had."""

from __future__ import annotations

import threading
import uuid

import pytest

from benchmarks.requests import Request, RequestStore, make_again
from pulse_registry.errors import NotFound
from pulse_registry.store import MemoryStore, Store
from pulse_registry.testing import CountingStore

LONG = 60.0


def asked() -> tuple[MemoryStore, RequestStore]:
    store = MemoryStore(uuid.uuid4().hex)
    return store, RequestStore(store)


def test_the_same_requests_are_made_again_and_what_is_put_lies_elsewhere() -> None:
    store, watched = asked()
    watched.put("a", [b"one", b"two"], if_absent=True)
    watched.get("a", (1, 4))
    with pytest.raises(NotFound):
        watched.get("b")
    counting = CountingStore(store)
    requests = watched.taken()
    make_again(counting, requests, "again/")
    assert counting.ledger == [("put", "again/a"), ("get", "a"), ("get", "b")]
    assert store.get("again/a") == b"onetwo"
    assert watched.taken() == []


def test_what_was_under_way_together_is_again_and_what_came_after_waits() -> None:
    both, done = threading.Barrier(2), list[str]()

    def together(name: str) -> Request:
        def again(store: Store, prefix: str) -> None:
            both.wait(LONG)
            done.append(name)

        return Request(again, 0.0, 1.0)

    after = Request(lambda store, prefix: done.append("after"), 1.0, 2.0)
    make_again(MemoryStore(uuid.uuid4().hex), [together("a"), together("b"), after], "")
    assert sorted(done[:2]) == ["a", "b"]
    assert done[2] == "after"


def test_what_goes_wrong_is_told() -> None:
    def fails(store: Store, prefix: str) -> None:
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        make_again(MemoryStore(uuid.uuid4().hex), [Request(fails, 0.0, 1.0)], "")
