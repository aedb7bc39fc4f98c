"""Many seeds, on all cores, and what they came to in one JSON document."""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any

import pytest

from benchmarks.results import machine, versions
from tests.scenarios.simulator.job_mutants import JOB_MUTANTS
from tests.scenarios.simulator.mutants import MUTANTS, Mutant
from tests.scenarios.simulator.regions import run_regions
from tests.scenarios.simulator.regions_mutants import REGIONS_MUTANTS
from tests.scenarios.simulator.rounds_mutants import ROUNDS_MUTANTS
from tests.scenarios.simulator.simulation import Outcome, run

EACH = 20_000
"""Store operations of a seed: some hundred versions, and the collector's whole round several times over."""
Say = Callable[[str], None]


def runner(ranks: int = 0, members: int = 0, *, regions: bool = False) -> Callable[[int, int], Outcome]:
    """Return what runs a seed of so many store operations: of one bucket, or of two regions."""
    return run_regions if regions else functools.partial(run, ranks=ranks, members=members)


def again(seed: int, operations: int, ranks: int = 0, members: int = 0, *, regions: bool = False) -> str:
    """Return the command that runs a seed again."""
    jobs = f" --ranks {ranks}" if ranks else ""
    rounds = f" --members {members}" if members else ""
    both = " --regions" if regions else ""
    return f"python -m tests.scenarios.simulator --seed {seed} --operations {operations}{jobs}{rounds}{both}"


def outcomes(
    seeds: Sequence[int], operations: int, processes: int, one: Callable[[int, int], Outcome]
) -> Iterator[Outcome]:
    """Run seeds, in their order, in so many processes."""
    if processes == 1:
        yield from (one(seed, operations) for seed in seeds)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(one, seeds, itertools.repeat(operations))


def campaign(
    total: int,
    *,
    first: int = 0,
    processes: int = 1,
    each: int = EACH,
    seconds: float = 1e9,
    ranks: int = 0,
    members: int = 0,
    regions: bool = False,
    say: Say = print,
) -> Iterator[dict[str, Any]]:
    """Run seeds from ``first`` on until so many store operations were made in all, or the time is over.

    With ``ranks``, trainers are jobs of up to so many; with ``members``, so many work in outer rounds; with
    ``regions``, the run moves between two buckets.

    Yields the document as it is after each seed.
    """
    began = time.perf_counter()
    counts: Counter[str] = Counter()
    done, operations, virtual = 0, 0, 0.0
    failed: list[dict[str, Any]] = []
    one = runner(ranks, members, regions=regions)
    for outcome in outcomes(range(first, first + -(-total // each)), each, processes, one):
        done, operations, virtual = done + 1, operations + outcome.operations, virtual + outcome.seconds
        counts.update(outcome.counts)
        if outcome.violation is not None:
            command = again(outcome.seed, each, ranks, members, regions=regions)
            failed.append({"seed": outcome.seed, "violation": outcome.violation, "again": command})
            say(f"seed {outcome.seed}: {outcome.violation}\n  {command}")
        taken = time.perf_counter() - began
        yield {
            "kind": "simulator",
            "machine": machine(),
            "versions": versions(),
            "seeds": {"first": first, "count": done, "operations_each": each},
            "operations": operations,
            "ranks": ranks,
            "members": members,
            "regions": regions,
            "virtual_hours": round(virtual / 3600, 1),
            "seconds": round(taken, 1),
            "processes": processes,
            "counts": dict(sorted(counts.items())),
            "violations": failed,
        }
        if taken > seconds:
            return


def measure_mutant(mutant: Mutant, seeds: Sequence[int], operations: int) -> dict[str, Any]:
    """Return after how many store operations each seed finds a mutant; None where it does not."""
    found: dict[int, int | None] = {}
    first = ""
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patched:
            mutant.apply(patched)
            outcome = runner(mutant.ranks, mutant.members, regions=mutant in REGIONS_MUTANTS)(seed, operations)
        found[seed] = outcome.operations if outcome.violation and not outcome.died else None
        first = first or ("" if outcome.died else outcome.violation or "")
    times = sorted(taken for taken in found.values() if taken is not None)
    return {
        "name": mutant.name,
        "safeguard": mutant.safeguard,
        "seeds": len(found),
        "found_by": len(times),
        "fewest": times[0] if times else None,
        "median": int(median(times)) if times else None,
        "seed": min((seed for seed in found if found[seed] is not None), key=lambda s: found[s] or 0, default=None),
        "found": first,
    }


def mutants(seeds: Sequence[int], operations: int, say: Say = print) -> list[dict[str, Any]]:
    """Measure all mutants."""
    rows = []
    for mutant in MUTANTS + JOB_MUTANTS + ROUNDS_MUTANTS + REGIONS_MUTANTS:
        rows.append(measure_mutant(mutant, seeds, operations))
        say(f"{rows[-1]['name']}: {rows[-1]['found_by']} of {len(seeds)} seeds, median {rows[-1]['median']}")
    return rows
