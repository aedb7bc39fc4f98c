"""Work over threads that leaves nothing running: when a call here returns or raises, all of its work has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

Map = Callable[..., Iterator[Any]]
"""``map``, or an executor's."""
Result = TypeVar("Result")


class ParallelMap:
    """Like ``map``, but eager, and spread over an executor's threads; results come in order.

    An error (or an interrupt) cancels the calls that have not begun and waits for those that have, so that none goes on
    writing behind the caller's back.
    """

    def __init__(self, pool: Executor, *, at_once: int | None = None) -> None:
        """Take an executor.

        Args:
            pool: whose threads make the calls.
            at_once: of one call's rows, so many are under way at a time, and the next one is asked for when one of
                these is done; None: all, at once.
        """
        self._pool, self._at_once = pool, at_once

    def __call__(self, function: Callable[..., Any], *columns: Iterable[Any]) -> Iterator[Any]:
        """Call ``function`` on each row of the columns; raises the first error by order."""
        rows: Iterable[tuple[Any, ...]] = zip(*columns, strict=True)
        if self._at_once is None:
            rows = list(rows)
            if len(rows) < 2:
                return iter([function(*row) for row in rows])
        futures: list[Future[Any]] = []
        failed, room = threading.Event(), threading.Semaphore((self._at_once or 1) - 1)

        def ended(future: Future[Any]) -> None:
            if future.cancelled() or future.exception() is not None:
                failed.set()
            room.release()

        try:
            for row in rows:
                futures.append(self._pool.submit(function, *row))
                if self._at_once is not None:
                    futures[-1].add_done_callback(ended)  # to wait for any of them would look at each of them
                    room.acquire()
                if failed.is_set():
                    break
        except BaseException:
            end(futures)
            raise
        return iter(results(futures))


@contextmanager
def parallel_map(threads: int, name: str) -> Iterator[ParallelMap]:
    """Start threads for the calls of a block: so many calls are under way at a time, and none after the block.

    Args:
        threads: how many.
        name: what their names begin with.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
        yield ParallelMap(pool, at_once=threads)


def results(futures: Sequence[Future[Result]]) -> list[Result]:
    """Wait for all futures and return what they gave; the first error, by order, is raised once all have ended."""
    try:
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:
        end(futures)
    failed = [f for f in futures if not f.cancelled() and f.exception() is not None]
    return [f.result() for f in failed[:1] or futures]


def end(futures: Sequence[Future[Any]]) -> None:
    """Cancel what has not begun and wait for the rest; says nothing of how it went."""
    wait([future for future in futures if not future.cancel()])
