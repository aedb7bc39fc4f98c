"""Direct patches are made of the pairs of versions that enough readers ask for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pulse_registry.client.store import ServiceStore
from pulse_registry.compaction import CompactOptions
from pulse_registry.compaction.loop import follow
from pulse_registry.compaction.requests import LIFE, ask
from pulse_registry.errors import AccessDenied, InvalidArgument, NotFound, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.pull.route import plan
from pulse_registry.registry import Registry
from pulse_registry.store import FileStore, PrefixStore, Store
from pulse_registry.store.wrappers.wrapper import WrapperStore
from pulse_schemas import DirectRequest
from tests.support.apps import app_over, running
from tests.support.records import DictStore
from tests.support.registries import RUN, bits, garbage, quick, state_of
from tests.unit.compaction.runs import compact, finish, merged, pushed


def requests_of(store: Store) -> list[str]:
    return list(store.list(f"{RUN}/{keys.REQUESTS}"))


def asked(store: Store, base: int, target: int, readers: int) -> None:
    for _ in range(readers):
        with quick(store) as worker:
            assert worker.request_direct(base, target)


def test_a_patch_that_two_readers_ask_for_is_made_and_their_requests_go() -> None:
    store = DictStore()
    model, states = pushed(store, 12)
    asked(store, 1, 11, 2)
    assert len(requests_of(store)) == 2
    made = compact(store)
    assert (made[-1].base, made[-1].target) == (1, 11)
    assert requests_of(store) == []
    assert [leg.base for leg in plan(state_of(store), 11, have=1).legs] == [1]
    with quick(store) as worker:
        assert not worker.request_direct(1, 11)
        weights = garbage(model)
        worker.pull(1, into=weights)
        assert worker.pull(11, into=weights).objects == 1
    assert bits(weights) == states[11]


def test_one_reader_is_not_enough_however_often_it_asks() -> None:
    store = DictStore()
    pushed(store, 6)
    with quick(store) as worker:
        assert worker.request_direct(0, 5)
        assert worker.request_direct(0, 5)
    compact(store)
    assert (0, 5) not in merged(store)
    assert len(requests_of(store)) == 1
    compact(store, CompactOptions(direct_after=1))
    assert (0, 5) in merged(store)


def test_a_request_says_what_its_key_says() -> None:
    store = DictStore()
    pushed(store, 3)
    asked(store, 0, 2, 1)
    [key] = requests_of(store)
    request = DirectRequest.unseal(store.get(key))
    assert keys.requested(key.removeprefix(f"{RUN}/")) == (request.base, request.target, request.reader)
    assert request.run == RUN


def test_what_can_not_be_met_is_refused_and_what_can_not_be_met_any_more_is_removed() -> None:
    store = DictStore()
    pushed(store, 6)
    with quick(store) as worker:
        with pytest.raises(NotFound, match="no version 9"):
            worker.request_direct(0, 9)
        with pytest.raises(InvalidArgument, match="older to a newer"):
            worker.request_direct(4, 4)
        assert worker.request_direct(2, 5)
        worker._writer().retire(versions=[2])
        with pytest.raises(NotFound, match="retired"):
            worker.request_direct(2, 5)
    for name in ("9-5", "x"):
        store.put(f"{RUN}/{keys.REQUESTS}{name}.json", b"no request")
    ask(PrefixStore(store, RUN), RUN, 3, 99, "a" * 32)
    compact(store, CompactOptions(direct_after=1))
    assert requests_of(store) == [f"{RUN}/{keys.REQUESTS}{name}.json" for name in ("9-5", "x")]


def test_requests_grow_old_by_the_store_s_clock() -> None:
    store = _Aging()
    pushed(store, 6)
    asked(store, 0, 5, 1)
    store.now += LIFE + timedelta(seconds=1)
    asked(store, 0, 5, 1)
    compact(store)
    assert (0, 5) not in merged(store), "only one of the two asked of late"
    assert len(requests_of(store)) == 1


class _Aging(DictStore):
    """A store that tells when an object was written, by a clock that the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.now = datetime(2026, 1, 2, tzinfo=UTC)
        self._written: dict[str, datetime] = {}

    def put(self, key, data, *, if_absent: bool = False) -> None:
        super().put(key, data, if_absent=if_absent)
        self._written[key] = self.now

    def modified(self, key: str) -> datetime:
        return self._written[key]


class _Forbids(WrapperStore):
    def list(self, prefix: str, after: str | None = None):
        if prefix.endswith(keys.REQUESTS):
            raise AccessDenied("no listing")
        return super().list(prefix, after)


def test_where_requests_can_not_be_listed_the_ladder_is_made_all_the_same() -> None:
    store = DictStore()
    pushed(store, 6)
    asked(store, 1, 5, 2)
    assert [done.target for done in compact(_Forbids(store))] == [4]


def test_requests_that_become_links_while_they_are_looked_at_stop_no_compactor(tmp_path: Path) -> None:
    files = FileStore(tmp_path / "root")
    pushed(files, 6)
    asked(files, 0, 5, 2)
    (tmp_path / "outside").write_bytes(b"of nobody here")

    class Planting(WrapperStore):
        def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
            listed = [*super().list(prefix, after)]
            for key in listed:
                if keys.REQUESTS in key:
                    (tmp_path / "root" / key).unlink()
                    (tmp_path / "root" / key).symlink_to(tmp_path / "outside")
            return iter(listed)

    made = compact(Planting(files))
    assert (0, 5) not in {(work.base, work.target) for work in made}
    assert [*(tmp_path / "root" / RUN / keys.REQUESTS).iterdir()] == []
    assert (tmp_path / "outside").read_bytes() == b"of nobody here"


def test_requests_are_looked_for_now_and_then() -> None:
    store, now = DictStore(), [0.0]
    pushed(store, 6)
    with quick(store) as registry:
        compactor = registry.compactor()
        compactor._clock = lambda: now[0]
        assert [done.target for done in iter(compactor.step, None)] == [4]
        asked(store, 1, 5, 2)
        assert compactor.step() is None
        now[0] += 10
        assert finish(compactor)[0].base == 1


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
