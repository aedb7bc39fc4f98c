"""A compactor that follows a run: it ends when told, outlives a store that fails, and works through a service."""

from __future__ import annotations

import threading

import pytest

from pulse_registry.client.store import ServiceStore
from pulse_registry.compaction.loop import follow
from pulse_registry.errors import InvalidArgument, StoreUnavailable
from pulse_registry.registry import Registry
from tests.support.apps import app_over, running
from tests.support.records import DictStore
from tests.support.registries import RUN, bits, garbage, quick
from tests.unit.compaction.runs import finish, merged, pushed


def test_what_an_earlier_build_left_under_requests_is_not_looked_at() -> None:
    store = DictStore()
    pushed(store, 6)
    left = [f"{RUN}/requests/000000000001-000000000005-{'a' * 32}.json", f"{RUN}/requests/x"]
    for key in left:
        store.put(key, b"a wish for the patch 1 -> 5")
    with quick(store) as registry:
        assert [(done.base, done.target) for done in finish(registry.compactor())] == [(0, 4)]
        assert (1, 5) not in merged(store)
        registry.verify(5)
    assert all(store.exists(key) for key in left)


def test_following_ends_when_it_is_told_and_outlives_a_store_that_fails() -> None:
    stop, steps = threading.Event(), iter([StoreUnavailable("down"), None])

    class Failing:
        def step(self) -> None:
            found = next(steps)
            if found is None:
                stop.set()
                return
            raise found

    assert list(follow(Failing(), stop, 0.001)) == []  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        list(follow(_Down(), threading.Event(), None))  # type: ignore[arg-type]


class _Down:
    def step(self) -> None:
        raise StoreUnavailable("down")


def test_a_registry_that_was_closed_makes_no_compactor() -> None:
    registry = Registry(DictStore(), RUN)
    registry.close()
    with pytest.raises(InvalidArgument, match="closed"):
        registry.compactor()


def test_a_compactor_works_through_a_service_too() -> None:
    store = DictStore()
    model, states = pushed(store, 6)
    with running(app_over(store)) as service:
        client = ServiceStore(service.url)
        with Registry(client, RUN) as registry:
            assert [(done.base, done.target) for done in finish(registry.compactor())] == [(0, 4)]
        client.close()
    with quick(store) as worker:
        weights = garbage(model)
        worker.pull(0, into=weights)
        worker.pull(5, into=weights)
    assert bits(weights) == states[5]
