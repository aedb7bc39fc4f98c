"""Calls over threads: in order, the first error by order, and no more of one caller's in the line than it may have."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pulse_registry.process.parallel import ParallelMap, parallel_map


class Counting(ThreadPoolExecutor):
    """Counts what was handed over and has not ended."""

    most = now = 0
    lock = threading.Lock()

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        future = super().submit(*args, **kwargs)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: Any) -> None:
        with self.lock:
            self.now -= 1


@pytest.mark.parametrize("at_once", [1, 3, None])
def test_results_come_in_order_and_the_line_is_as_long_as_it_may_be(at_once: int | None) -> None:
    with Counting(4) as pool:
        assert [*ParallelMap(pool, at_once=at_once)(lambda a, b: a * b, range(50), range(50))] == [
            n * n for n in range(50)
        ]
        # A future wakes those who wait for it before it tells those who asked to be called.
        assert pool.most <= (2 * at_once if at_once else 50)


def test_the_first_error_ends_it_and_nothing_goes_on() -> None:
    begun = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 5:
            raise ValueError(number)

    with Counting(1) as pool, pytest.raises(ValueError, match="5"):
        ParallelMap(pool, at_once=2)(work, range(1000))
    assert pool.now == 0
    assert len(begun) <= 7


def test_a_block_has_so_many_threads_of_its_name_and_none_after_it() -> None:
    meeting = threading.Barrier(3)
    with parallel_map(3, "of-this-test") as map_:
        names = {*map_(lambda _: (meeting.wait(), threading.current_thread().name)[1], range(3))}
    assert {name.rpartition("_")[0] for name in names} == {"of-this-test"}
    assert len(names) == 3
    assert not [thread for thread in threading.enumerate() if thread.name in names]
