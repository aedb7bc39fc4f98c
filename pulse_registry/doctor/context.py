"""Context of the doctor's checks besides the store: plan, other clients, clocks, random numbers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pulse_registry.errors import InvalidArgument
from pulse_registry.process.parallel import parallel_map
from pulse_registry.store import Store

T = TypeVar("T")

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """How much an examination does.

    Attributes:
        rounds: how often writers race for a key.
        racers: how many race.
        samples: how often small things are repeated, for a figure or to catch what goes wrong now and then.
        listed: how many keys a listing must return; over 1,000, so that S3 answers in pages.
        large_bytes: size of a large object; over what stores take in one piece.
    """

    rounds: int = 20
    racers: int = 32
    samples: int = 50
    listed: int = 1_100
    large_bytes: int = 64 * MB

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidArgument: there would be nothing to see.
        """
        if self.rounds < 1 or min(self.samples, self.listed, self.large_bytes) < 2:
            raise InvalidArgument("rounds must be 1 or more; samples, listed and large_bytes 2 or more")
        if not 2 <= self.racers <= 512:
            raise InvalidArgument(f"racers must be 2 to 512, not {self.racers}")


MOST_BYTES: Final = 128 << 20
"""Of what an examination reads whole: twice the largest object that it writes."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a check works with, besides the store, which tries again when it is unavailable.

    Attributes:
        bare: the same store, which does not try again: what it answers is what the server said.
        observer: a second client of the same objects: it sees what is there, and nothing that the first one remembers.
        plan: how much to do.
        clock: monotonic time in seconds.
        now: the wall clock, in seconds since 1970.
        pause: what waits.
        rng: what draws bytes; seed it to repeat them.
    """

    bare: Store
    observer: Store
    plan: Plan = field(default_factory=Plan)
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=random.Random)

    def together(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Run jobs at once, each in a thread, none of them before all are there.

        When this returns or raises, every job has ended. The first error in order is raised.
        """
        gate = threading.Barrier(len(jobs))

        def run(job: Callable[[], T]) -> T:
            gate.wait()
            return job()

        with ThreadPoolExecutor(len(jobs), thread_name_prefix="pulse-doctor") as pool:
            try:
                futures = [pool.submit(run, job) for job in jobs]
                wait(futures)
            except BaseException:
                gate.abort()
                raise
        return [future.result() for future in futures]

    def spread(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Run jobs over as many threads as there are racers; after an error or an interrupt no more begin."""
        with parallel_map(self.plan.racers, "pulse-doctor") as map_:
            return [*map_(lambda job: job(), jobs)]
