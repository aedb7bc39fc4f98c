"""Far behind: objects and bytes of a worker that is any distance behind, with and without a compactor.

A real run is pushed, a real compactor works on it, the real route search plans on what it attached, and the direct
diffs that it is held against are really coded. States are recorded ones, or synthetic AdamW steps of a policy that is
small enough for thousands of versions. What an object costs in the route search is scaled with the policy, as if it
were a large one: for a patch of a few kB the default would always choose the fewest objects.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Row, machine, versions
from benchmarks.states import Live, States
from pulse_kernels import get_backend
from pulse_registry import Registry
from pulse_registry.compaction import Attached, CompactOptions
from pulse_registry.format.patch_coding import CoderChoice, PatchFile, code_change
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.log import RunState
from pulse_registry.options import Options
from pulse_registry.pull.route import plan
from pulse_registry.push.options import PushOptions
from pulse_registry.store.prices import USUAL, Prices
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import read_model
from tests.support.records import DictStore

TITLE = "Far behind"
LARGE_CELLS = 7_600_000_000
"""Of the policy whose worker the routes are planned for, in proportion."""
LADDER_SCALE = 0.04
"""Of the synthetic weights: 0.5 to 0.9 percent of the cells then change a step."""
EDGES = (0, 1, 165, 331, 683, 1365, 2047)
"""Starts that lie badly for blocks of 2^k versions, beside the random ones."""
PairSizes = dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Behind:
    """A worker at ``base`` that is to get to ``target``: its route, and the bytes of the direct diff and the chain."""

    base: int
    target: int
    nbytes: int
    objects: int
    direct: int
    chain: int

    @property
    def distance(self) -> int:
        """Versions behind."""
        return self.target - self.base

    @property
    def ratio(self) -> float:
        """Bytes of the route, of the direct diff's."""
        return self.nbytes / self.direct


def measure_ladder(
    states: States,
    *,
    starts: int = 16,
    targets: int = 64,
    coder: CoderChoice = "auto",
    seed: int = 0,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Push the states, compact the run, and plan routes over it; return the result document.

    Args:
        states: of the run.
        starts: random versions to be behind from, beside ``EDGES``.
        targets: random versions to get to from each, and as many whose distances are spread over all octaves.
        coder: of the patches.
        seed: of the choice of pairs.
        say: told what is being done.
    """
    store, newest = DictStore(), len(states.steps)
    options = Options(push=PushOptions(coder=coder, dtype="keep", keyframe_share=1e9))
    with Registry(store, "ladder", options) as registry:
        say(f"pushing {newest + 1} versions")
        live = Live(states)
        for version in range(newest + 1):
            live.go(version)
            registry.push(version, live.model())
        say("compacting")
        done = _compact(registry, CompactOptions())
        say("coding direct diffs")
        pairs = _pairs(newest, starts, targets, seed)
        direct = _direct_sizes(states, Geometry(registry.layout(0)), pairs)
        say("planning routes")
        state, cost = registry.state(), object_cost(states)
        behind = [_behind(state, base, target, nbytes, cost) for (base, target), nbytes in direct.items()]
        joins = [_join(state, target, direct, cost) for base, target in pairs if base == 0]
    return _document(states, state, behind, joins, done, seed, coder)


def object_cost(states: States) -> int:
    """Return what an object costs in the route search, in bytes, in proportion to the policy."""
    return max(1, round(USUAL.object_cost * states.cells / LARGE_CELLS))


def _compact(registry: Registry, options: CompactOptions) -> list[Attached]:
    compactor, done = registry.compactor(options), []
    while (piece := compactor.step()) is not None:
        done.append(piece)
    compactor.close()
    return done


def _pairs(newest: int, starts: int, targets: int, seed: int) -> list[tuple[int, int]]:
    """Choose bases and targets: uniform over distances, spread over octaves, and to the newest version from anywhere.

    The newest is what most workers go to, and the hardest to reach: no block leads past it and back.
    """
    rng = random.Random(seed)
    bases = {base for base in EDGES if base < newest} | {rng.randrange(newest) for _ in range(starts)}
    found = set()
    for base in sorted(bases):
        room = newest - base
        found |= {(base, base + rng.randint(1, room)) for _ in range(targets)}
        found |= {(base, base + round(room ** rng.random())) for _ in range(targets)}
    found |= {(rng.randrange(newest), newest) for _ in range(4 * targets)}
    return sorted(found)


def _direct_sizes(states: States, geometry: Geometry, pairs: Sequence[tuple[int, int]]) -> PairSizes:
    """Code the diff of each pair as a patch of its own, and return its size."""
    backend, live, other = get_backend(), Live(states), Live(states)
    old, new = (Weights.into(geometry, read_model(item.model())) for item in (live, other))
    found = {}
    for base, target in pairs:
        live.go(base)
        other.go(target)
        changes = [
            SparseUpdate(group, *backend.diff(new.copy_of(group), old.copy_of(group))) for group in geometry.groups
        ]
        coded = [code_change(backend, change, "gap", None) for change in changes if len(change.index)]
        found[base, target] = PatchFile.of(geometry, base, target, coded).nbytes
    return found


def _behind(state: RunState, base: int, target: int, direct: int, cost: int) -> Behind:
    route = plan(state, target, have=base, prices=Prices(cost))
    chain = sum(_step_size(state, version) for version in range(base + 1, target + 1))
    return Behind(base, target, route.nbytes, route.objects, direct, chain)


def _step_size(state: RunState, version: int) -> int:
    return next(patch.size for patch in state.patches_into(version) if patch.base == version - 1)


def _join(state: RunState, target: int, direct: PairSizes, cost: int) -> Behind:
    """Return what joining late costs beyond the keyframe, which is of version 0."""
    route = plan(state, target, have=None, prices=Prices(cost))
    first = route.legs[0]
    return Behind(0, target, route.nbytes - first.nbytes, route.objects - first.objects, direct[0, target], 0)


def _document(
    states: States,
    state: RunState,
    behind: list[Behind],
    joins: list[Behind],
    done: list[Attached],
    seed: int,
    coder: str,
) -> dict[str, Any]:
    chain = sum(_step_size(state, version) for version in range(1, len(state.versions)))
    written = sum(piece.nbytes for piece in done)
    return {
        "kind": "ladder",
        "title": f"{TITLE}: {states.title}, {len(states.steps) + 1:,} versions",
        "machine": machine(),
        "versions": versions(),
        "seed": seed,
        "settings": {
            "coder": coder,
            "versions": len(state.versions),
            "cells": states.cells,
            "object_cost": object_cost(states),
        },
        "rows": [row.document() for row in ladder_rows(behind, joins, written / chain)],
        "blocks": _blocks(done),
        "states": states.kind,
        "full_bytes": next(iter(state.keyframes)).size,
        "chain_bytes": chain,
        "written_bytes": written,
        "pairs": len(behind),
        "distances": _distances(behind),
    }


def ladder_rows(behind: Sequence[Behind], joins: Sequence[Behind], writes: float) -> list[Row]:
    """Return the figures and the limits that they are held against."""
    over = max(b.objects - (2 * math.log2(b.distance) + 2) for b in behind)
    worst = max(behind, key=lambda b: b.ratio)
    mean = sum(b.ratio for b in behind) / len(behind)
    joined = max((b.ratio for b in joins), default=0.0)
    return [
        Row("objects", "objects of a route beyond 2 log2(distance) + 2, most", over, "", "at most", 0.0),
        Row("mean", "bytes of a route, of the direct diff's, mean", mean, "x", "at most", 2.6),
        Row("worst", f"the same, worst ({worst.base} to {worst.target})", worst.ratio, "x", "at most", 3.5),
        Row(
            "join", "joining late: beyond the keyframe, of the direct diff's since, worst", joined, "x", "at most", 3.5
        ),
        Row("writes", "bytes that the compactor wrote, of the chain's", writes, "x", "at most", 2.5),
    ]


def _distances(behind: Sequence[Behind]) -> list[dict[str, float]]:
    """Return means and extremes by distance, in steps of a quarter of an octave."""
    steps: dict[int, list[Behind]] = {}
    for item in behind:
        steps.setdefault(round(4 * math.log2(item.distance)), []).append(item)
    return [
        {
            "distance": _mean([b.distance for b in found]),
            "pairs": len(found),
            "objects": _mean([b.objects for b in found]),
            "most_objects": max(b.objects for b in found),
            "bytes": _mean([b.nbytes for b in found]),
            "direct_bytes": _mean([b.direct for b in found]),
            "chain_bytes": _mean([b.chain for b in found]),
            "ratio": _mean([b.ratio for b in found]),
            "worst_ratio": round(max(b.ratio for b in found), 3),
        }
        for _, found in sorted(steps.items())
    ]


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3)


def _blocks(done: Sequence[Attached]) -> dict[str, dict[str, int]]:
    """Return number and bytes of the merged patches of each span."""
    found: dict[str, dict[str, int]] = {}
    for piece in done:
        if piece.base is not None:
            block = found.setdefault(str(piece.target - piece.base), {"patches": 0, "bytes": 0})
            block["patches"] += 1
            block["bytes"] += piece.nbytes
    return found
