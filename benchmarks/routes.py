"""``python -m benchmarks.routes``: how long it takes to find a route in a long run, and to go on when a record comes.

The logs are made up: the sizes of a policy of 7.6 billion cells, of which merged patches grow as distance^0.48, as
recorded. Nothing is fetched. Times are the thread's processor time, so that other work on the machine counts little,
and the least of several.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.show import rows_table
from pulse_registry.format import keys
from pulse_registry.log import RunState
from pulse_registry.log.fold import advance
from pulse_registry.pull.route import plan
from pulse_schemas import CommitRecord, KeyframeRef, ObjectRef, PatchRef, Snapshot, VersionEntry

TITLE = "Routes in a long run"
LIMIT_MS = 50.0
PATCH_BYTES, KEYFRAME_BYTES, GROWTH = 80_750_000, 15_200_000_000, 0.48
KEYFRAME_SHARDS = 4
_WHEN, _HASH, _DIGEST, _ID = "2026-01-01T00:00:00.000Z", "a" * 64, "b" * 32, "0" * 32
app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class Shape:
    """A run's objects beside its chain.

    Attributes:
        name: in words.
        ladder: whether it has a merged patch for every 2, 4, 8, ... versions, as many as there are versions.
        keyframe_every: versions from keyframe to keyframe; 0: one, at version 0.
    """

    name: str
    ladder: bool
    keyframe_every: int


SHAPES = (
    Shape("a chain, one keyframe", ladder=False, keyframe_every=0),
    Shape("a full ladder, one keyframe", ladder=True, keyframe_every=0),
    Shape("a full ladder, keyframes", ladder=True, keyframe_every=1000),
)


def a_run(shape: Shape, count: int, seed: int = 0) -> RunState:
    """Return a run of so many versions."""
    rng = random.Random(seed)
    frames = range(0, count, shape.keyframe_every or count)
    snapshot = Snapshot.model_construct(
        run="long",
        seq=count,
        last=_HASH,
        epoch=1,
        count=count,
        versions=tuple(_entry(version) for version in range(count)),
        patches=tuple(patch(version - span, version, rng) for version, span in _spans(shape, count)),
        keyframes=tuple(_keyframe(version) for version in frames),
        retired_versions=(),
        retired_keys=(),
        tags={},
    )
    return RunState.from_snapshot(snapshot)


def patch(base: int, target: int, rng: random.Random) -> PatchRef:
    """Return a patch whose size is what its span makes it, give or take a tenth."""
    size = round(PATCH_BYTES * (target - base) ** GROWTH * rng.uniform(0.9, 1.1))
    return PatchRef.model_construct(
        base=base,
        target=target,
        coder="gap",
        changed=1,
        object=ObjectRef.model_construct(key=keys.patch_key(base, target, _ID), size=size, blake3=_HASH),
        head_size=1,
        head_blake3=_HASH,
    )


def _spans(shape: Shape, count: int) -> Iterator[tuple[int, int]]:
    for version in range(1, count):
        span = 1
        while version % span == 0 and span <= version:
            yield version, span
            span = 2 * span if shape.ladder else count


def _keyframe(version: int) -> KeyframeRef:
    def ref(name: str, size: int) -> ObjectRef:
        return ObjectRef.model_construct(key=keys.keyframe_key(version, _ID, name), size=size, blake3=_HASH)

    shards = tuple(ref(f"{n}", KEYFRAME_BYTES // KEYFRAME_SHARDS) for n in range(KEYFRAME_SHARDS))
    return KeyframeRef.model_construct(version=version, index=ref("index", 10_000), shards=shards)


def _entry(version: int) -> VersionEntry:
    return VersionEntry.model_construct(
        version=version,
        seq=version + 1,
        step=version,
        layout=_HASH,
        digest=_DIGEST,
        changed=1,
        cells=100,
        created_at=_WHEN,
        metadata={},
    )


def next_commit(state: RunState, rng: random.Random) -> CommitRecord:
    """Return the record of one version more."""
    version = len(state.versions)
    return CommitRecord.model_construct(
        kind="commit",
        run=state.run,
        seq=state.seq + 1,
        epoch=state.epoch,
        write_id=_ID,
        previous=state.last,
        created_at=_WHEN,
        version=version,
        step=version,
        parent=version - 1,
        layout=_HASH,
        patch=patch(version - 1, version, rng),
        keyframe=None,
        digest=_DIGEST,
        changed=1,
        cells=100,
        metadata={},
    )


def measure_shape(shape: Shape, count: int, repeats: int, seed: int = 0) -> list[Row]:
    """Measure the searches in one run, and what a record costs."""
    state, rng, newest = a_run(shape, count, seed), random.Random(seed), count - 1
    ways: dict[str, tuple[int | None, int]] = {
        "one behind": (newest - 1, newest),
        "100 behind": (max(0, newest - 100), newest),
        "from the middle": (newest // 2, newest),
        "from 0": (0, newest),
        "from nothing": (None, newest),
        "from nothing to the middle": (None, newest // 2),
        "back to 1": (newest, 1),
    }
    rows = []
    for name, (have, target) in ways.items():
        seconds, route = least(lambda have=have, target=target: plan(state, target, have=have), repeats)  # type: ignore[misc]
        what = f"{shape.name}: {name} ({len(route.legs):,} leg{'s' if len(route.legs) > 1 else ''})"
        rows.append(Row(f"{shape.name}.{name}", what, seconds * 1e3, "ms", "at most", LIMIT_MS))

    folds, firsts = [], []
    for _ in range(repeats):
        seconds, state = _timed(lambda state=state: _after(state, next_commit(state, rng)))  # type: ignore[misc]
        folds.append(seconds)
        firsts.append(_timed(lambda state=state: plan(state, len(state.versions) - 1, have=0))[0])  # type: ignore[misc]
    rows.append(Row(f"{shape.name}.fold", f"{shape.name}: one record more", min(folds) * 1e3, "ms"))
    what = f"{shape.name}: from 0, the first search after it"
    rows.append(Row(f"{shape.name}.first", what, min(firsts) * 1e3, "ms", "at most", LIMIT_MS))
    if shape.ladder:
        rows.append(_bound(shape, state, rng))
    return rows


def _after(state: RunState, record: CommitRecord) -> RunState:
    newer = state.copy()
    advance(newer, record, _HASH)
    return newer


def _bound(shape: Shape, state: RunState, rng: random.Random, pairs: int = 200) -> Row:
    """Return by how many objects the worst of random routes, over all octaves of distance, is over the bound."""
    worst = -math.inf
    for _ in range(pairs):
        distance = round((len(state.versions) - 1) ** rng.random())
        have = rng.randrange(len(state.versions) - distance)
        target = have + distance
        objects = plan(state, target, have=have).objects
        worst = max(worst, objects - (2 * math.log2(distance) + 2))
    what = f"{shape.name}: objects over 2 log2(distance) + 2, the most of {pairs} routes of all distances"
    return Row(f"{shape.name}.objects", what, round(worst, 1), "", "at most", 0)


def least(act: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Return the least time of a call, after one that does not count, and what it returned."""
    act()
    found = [_timed(act) for _ in range(repeats)]
    return min(seconds for seconds, _ in found), found[0][1]


def _timed(act: Callable[[], Any]) -> tuple[float, Any]:
    began = time.thread_time()
    result = act()
    return time.thread_time() - began, result


@app.command()
def routes(
    count: Annotated[int, typer.Option("--versions", help="Of each run.", min=200)] = 100_000,
    repeats: Annotated[int, typer.Option(help="Of each measurement.", min=1)] = 9,
    seed: Annotated[int, typer.Option(help="Of the patches' sizes.")] = 0,
    out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "routes.json",
) -> None:
    """Measure route searches; print them, and write a result file."""
    console, found = Console(), []
    for shape in SHAPES:
        console.print(f"... {shape.name}")
        found += measure_shape(shape, count, repeats, seed)
    console.print(rows_table(f"{TITLE}: {count:,} versions", found))
    document = {
        "kind": "routes",
        "title": f"{TITLE}: {count:,} versions",
        "machine": machine(),
        "versions": versions(),
        "seed": seed,
        "settings": {"versions": count, "repeats": repeats},
        "rows": [row.document() for row in found],
    }
    write_result(out, document)
    console.print(f"written to {out}")


if __name__ == "__main__":
    app()
