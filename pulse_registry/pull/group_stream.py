"""Stream of patch groups: those of several patches in order, each to be decoded once its bytes have arrived.

A chain needs a group's bytes of all its patches at once: so the ranges of all of them are asked for side by side, by
group. No more of them are on their way, or wait to be decoded, than fit a bound.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future
from contextlib import closing
from typing import TypeVar

from pulse_registry.format.patch import Patch, Run
from pulse_registry.process.cores import usable_cores
from pulse_registry.process.parallel import ParallelMap, end
from pulse_registry.pull.fetch import FETCH_THREADS, RANGE_BYTES
from pulse_registry.timeline import Timeline

Result = TypeVar("Result")


def arriving(
    patches: Sequence[Patch], numbers: Sequence[int], fetchers: Executor, timeline: Timeline
) -> Generator[int]:
    """Yield group numbers, in order, each once its bytes in all patches are at hand; close it to stop the reading.

    Args:
        patches: with their heads at hand; what else of these groups is missing is read here.
        numbers: of groups, in order.
        fetchers: its threads wait for the store.
        timeline: notes the phase ``fetch``.

    Raises:
        CorruptObject, NotFound, StoreUnavailable: as ``Patch.fetch``.
    """

    def fetch(patch: Patch, run: Run) -> None:
        began = timeline.clock()
        timeline.note("fetch", began, nbytes=patch.fetch(run))

    asked = [(run, patch) for patch in patches for run in patch.missing(RANGE_BYTES, numbers)]
    waiting = deque(sorted(asked, key=lambda item: item[0][:2]))
    flying: deque[tuple[int, int, Future[None]]] = deque()  # by first group
    try:
        for number in numbers:
            while waiting and (waiting[0][0].first <= number or len(flying) < FETCH_THREADS):
                run, patch = waiting.popleft()
                flying.append((run.first, run.last, fetchers.submit(fetch, patch, run)))
            for first, _, future in flying:
                if first <= number:
                    future.result()
            yield number
            flying = deque(item for item in flying if item[1] > number)
    finally:
        end([future for *_, future in flying])


def in_pool(pool: Executor, work: Callable[[int], Result], numbers: Generator[int]) -> list[Result]:
    """Do the work of each number on a pool's threads as the numbers come, few at a time; return the results in order.

    The first error is raised once all work has ended.
    """
    in_hand = 4 * max(4, usable_cores())  # groups that arrived and are not decoded yet: enough to keep threads busy
    with closing(numbers):
        return [*ParallelMap(pool, at_once=in_hand)(work, numbers)]
