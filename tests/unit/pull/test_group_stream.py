"""Arrival: groups come in order, each as soon as it is there, few ranges ahead, and an error leaves nothing running."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from pulse_kernels import get_backend
from pulse_registry.errors import StoreUnavailable
from pulse_registry.format.patch import Patch
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.pull import fetch, group_stream
from pulse_registry.pull.fetch import FETCH_THREADS, begin_patches
from pulse_registry.pull.group_stream import arriving, in_pool
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_space import Geometry
from tests.support.groups import geometry_of
from tests.support.inline import Inline
from tests.support.patches import encode_patch
from tests.support.records import DictStore
from tests.support.waiting import HANG_S, until

BACKEND = get_backend("reference")
GROUPS = 30


class Stored:
    """Patches that change every group by one cell, in a store whose ranges hold one group each."""

    def __init__(self, patches: int, skipped: int = GROUPS) -> None:
        cells = np.zeros(32 * GROUPS, np.uint16)
        self.geometry: Geometry = geometry_of({"w": cells})
        self.store, refs = DictStore(), []
        one = np.ones(1, np.uint16)
        for number in range(patches):
            changes = [
                SparseUpdate(group, np.array([number], np.uint32), one - one, one)
                for group in self.geometry.groups
                if (group.number + number) % skipped
            ]
            file = encode_patch(BACKEND, self.geometry, number, number + 1, changes)
            self.store.put(f"objects/patch/{number}", [file.head, *file.groups])
            refs.append(file.ref(f"objects/patch/{number}"))
        self.refs = refs

    def begin(self) -> list[Patch]:
        return begin_patches(self.store, "run", self.geometry, self.refs, map)


@pytest.fixture(autouse=True)
def _short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fetch, group_stream):
        monkeypatch.setattr(module, "RANGE_BYTES", 1)


class Held(Executor):
    """Notes calls, and does them when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[Future[Any], Any, Any]] = []
        self.done = 0

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked.append((Future(), function, args))
        return self.asked[-1][0]

    def do(self, number: int) -> None:
        future, function, args = self.asked[number]
        future.set_result(function(*args))


@pytest.mark.parametrize("patches", [1, 2, 3 * FETCH_THREADS])
@pytest.mark.parametrize("skipped", [GROUPS, 3, 2])
def test_groups_come_in_order_with_all_of_their_bytes(patches: int, skipped: int):
    stored = Stored(patches, skipped)
    found = stored.begin()
    numbers = sorted({number for patch in found for number in patch.entries})
    came = []
    with ThreadPoolExecutor(FETCH_THREADS) as fetchers:
        for number in arriving(found, numbers, fetchers, Timeline()):
            came.append(number)
            for patch in found:
                missing = {run.first for run in patch.missing(1, numbers)}
                assert number not in missing
                if number in patch.entries:
                    assert len(patch.decode(BACKEND, stored.geometry.groups[number]).index) == 1
    assert came == numbers


def test_a_group_does_not_wait_for_the_ranges_after_its_own():
    stored, fetchers, timeline = Stored(1), Held(), Timeline()
    found = stored.begin()
    numbers = list(found[0].entries)
    coming = arriving(found, numbers, fetchers, timeline)
    came: list[int] = []
    for number in numbers:
        thread = threading.Thread(target=lambda: came.append(next(coming)))
        thread.start()
        until(lambda: len(fetchers.asked) > fetchers.done)
        fetchers.do(fetchers.done)
        fetchers.done += 1
        thread.join(timeout=HANG_S)
        assert came[-1] == number
        assert len(fetchers.asked) <= fetchers.done + FETCH_THREADS
    coming.close()
    (phase,) = timeline.phases()
    assert (phase.phase, phase.nbytes) == ("fetch", sum(entry.size for entry in found[0].entries.values()))


def test_no_more_than_a_few_ranges_are_on_their_way():
    stored, fetchers = Stored(1), Held()
    found = stored.begin()
    thread = threading.Thread(target=lambda: next(arriving(found, list(found[0].entries), fetchers, Timeline())))
    thread.start()
    until(lambda: len(fetchers.asked) == FETCH_THREADS)
    fetchers.do(0)
    thread.join(timeout=HANG_S)
    assert len(fetchers.asked) == FETCH_THREADS


def test_what_fails_to_come_is_raised_when_all_reading_has_ended():
    stored, running = Stored(2), []
    entries = list(stored.begin()[1].entries.values())
    start = stored.refs[1].head_size + sum(entry.size for entry in entries[:5])
    place = (start, start + entries[5].size)

    def get(key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        running.append(1)
        try:
            if byte_range == place:
                raise StoreUnavailable("no")
            return DictStore.get(stored.store, key, byte_range)
        finally:
            running.pop()

    stored.store.get = get  # type: ignore[method-assign]
    found = stored.begin()
    came: list[int] = []
    with ThreadPoolExecutor(4) as fetchers:
        with pytest.raises(StoreUnavailable, match="no"):
            came.extend(arriving(found, range(GROUPS), fetchers, Timeline()))
        assert not running
    assert came == list(range(entries[5].group))


def test_closing_it_reads_no_more():
    stored, fetchers = Stored(1), Held()
    found = stored.begin()
    with ThreadPoolExecutor(1) as pool:
        coming = arriving(found, list(found[0].entries), pool, Timeline())
        next(coming)
        coming.close()
    assert found[0].missing(1, range(GROUPS)), "what was not asked for is still missing"
    assert not fetchers.asked


def test_work_is_done_as_numbers_come_and_keeps_their_order():
    def numbers() -> Iterator[int]:
        for number in range(50):
            assert len(begun) >= min(number, 1)
            yield number

    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        return number * number

    assert in_pool(Inline(), work, (n for n in numbers())) == [n * n for n in range(50)]
    with ThreadPoolExecutor(3) as pool:
        assert in_pool(pool, work, (n for n in numbers())) == [n * n for n in range(50)]
        assert in_pool(pool, work, (n for n in ())) == []


def test_an_error_in_the_work_stops_the_coming_and_is_raised_alone():
    closed = []

    def numbers() -> Any:
        try:
            yield from range(10_000)
        finally:
            closed.append(True)

    with ThreadPoolExecutor(2) as pool, pytest.raises(ZeroDivisionError):
        in_pool(pool, lambda number: 1 // (number - 7), numbers())
    assert closed == [True]


def test_an_error_in_the_coming_waits_for_the_work_that_was_begun():
    ended: list[int] = []
    go = threading.Event()

    def numbers() -> Any:
        yield 1
        go.set()
        raise StoreUnavailable("gone")

    def work(number: int) -> None:
        go.wait(timeout=HANG_S)
        ended.append(number)

    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(StoreUnavailable, match="gone"):
            in_pool(pool, work, numbers())
        assert ended in ([1], [])
