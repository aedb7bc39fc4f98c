"""A few hundred inputs of every target, without a guide: ``python -m tests.fuzz`` is the one that searches."""

from __future__ import annotations

import random
import tracemalloc
import zlib

import pytest

from tests.fuzz.target import MEMORY
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_does_anything_but_to_be_read_or_refused(name: str) -> None:
    target = TARGETS[name]()
    rng = random.Random(zlib.crc32(name.encode()))
    pool = list(target.seeds)
    accepted = sum(target.check(seed) for seed in pool)
    assert accepted > len(pool) / 3, "the seeds are what a writer writes"
    tracemalloc.start()
    try:
        for _ in range(target.tries):
            data = target.mutate(rng.choice(pool), rng)[: target.max_len]
            if target.check(data) or rng.randrange(4) == 0:
                pool.append(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY
