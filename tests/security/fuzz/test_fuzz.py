"""Some fifty inputs of every target, without a guide: ``python -m tests.security.fuzz`` is the one that searches."""

from __future__ import annotations

import importlib.util
import json
import random
import tracemalloc
import zlib
from functools import cache
from pathlib import Path

import pytest

from tests.security.fuzz.campaign import fuzz
from tests.security.fuzz.target import MEMORY, Target
from tests.security.fuzz.targets import TARGETS


@cache
def target_of(name: str) -> Target:
    return TARGETS[name]()


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_does_anything_but_to_be_read_or_refused(name: str) -> None:
    target = target_of(name)
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


FOUND = json.loads((Path(__file__).parent / "found.json").read_text())


@pytest.mark.parametrize(("name", "what"), [(name, what) for name, inputs in FOUND.items() for what in inputs])
def test_what_was_found_once_is_refused(name: str, what: str) -> None:
    assert not target_of(name).check(bytes.fromhex(FOUND[name][what]))


@pytest.mark.sweep
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this machine")
def test_the_guided_fuzzer_goes_further_than_its_seeds(tmp_path: Path) -> None:
    outcome = fuzz("layout", 20, tmp_path / "found")
    assert not outcome.findings
    assert outcome.executions > 1000
    assert outcome.corpus > len(TARGETS["layout"]().seeds), "it kept what took a way that no seed takes"
