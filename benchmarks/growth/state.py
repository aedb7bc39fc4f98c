"""How a run's state grows with its versions: what a push asks of it, what it holds, what opening it takes, and a route.

A run as a compactor keeps it: a patch a version, all merged ones of the ladder that are always worth it (41 for 100
versions), a keyframe every 100 versions. Ids, hashes and sizes are random, as they are in a bucket: they are most of
what a version takes.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Iterator
from itertools import islice
from typing import Any

from benchmarks.growth.curve import Curve, processor_ms
from pulse_registry.compaction.ladder import CompactOptions, due, spans_into
from pulse_registry.format import keys
from pulse_registry.log import RunState
from pulse_registry.log.block import Block
from pulse_registry.log.keyframe_due import keyframe_due
from pulse_registry.log.table import Table
from pulse_registry.log.tables import Tables
from pulse_registry.pull.route import plan
from pulse_schemas import AttachRecord, CommitRecord, KeyframeRef, ObjectRef, PatchRef, Record

_WHEN = "2026-01-02T03:04:{:02d}.{:03d}Z"
_LAYOUT = "a" * 64
_KEYFRAME_EVERY = 100
_MEGABYTE = 1e6
_BATCHES, _BATCH = 8, 32
_SIZES = (100, 1_000, 10_000, 100_000)
_MOST = 1_000_000
_QUICK = (20, 60, 200)


def curves(quick: bool) -> list[Curve]:
    """Return the curves, of one run that grows; see `benchmarks.growth.suite`."""
    rng = random.Random(18)
    log, state = records(rng), RunState("long")
    push, held, opened, routes = (list[tuple[int, float]]() for _ in range(4))
    for size in _QUICK if quick else _SIZES:
        state = _folded(state, log, size)
        state, cost = _push_ms(state, log)
        push.append((size, cost))
        stored = _stored(state)
        held.append((size, _held_bytes(stored) / size))
        opened.append((size, processor_ms(lambda stored=stored: _open(stored), repeats=3)))  # type: ignore[misc]
        routes.append((size, _route_ms(state)))
    if not quick:
        state = _folded(state, log, _MOST)
        routes.append((_MOST, _route_ms(state)))
    return [
        Curve(
            "state.push", "a push, in the state: fold, keyframe, ladder", "versions", "ms", tuple(push), "spread", 1.5
        ),
        Curve("state.held", "a version, in memory", "versions", "bytes", tuple(held), "last", 400),
        Curve("state.open", "open a state whose segments are here", "versions", "ms", tuple(opened), "last", 500),
        Curve("state.route", "the first route of a state, through all of the run", "versions", "ms", tuple(routes)),
    ]


def _folded(state: RunState, log: Iterator[Record], versions: int) -> RunState:
    while len(state.versions) < versions:
        state = _with_record(state, next(log))
    return state


def _with_record(state: RunState, record: Record) -> RunState:
    state = state.copy()
    state.apply(record)
    state.seq, state.last = record.seq, "0" * 64
    return state


def _push_ms(state: RunState, log: Iterator[Record]) -> tuple[RunState, float]:
    """Fold records, each with the looks that follow a push; return the least cost of one, of several batches."""
    options, least = CompactOptions(keyframe_every=10**9), float("inf")
    for _ in range(_BATCHES):
        batch = [*islice(log, _BATCH)]
        began = time.process_time()
        for record in batch:
            state = _with_record(state, record)
            keyframe_due(state, 10**9, every=None, share=10.0**9)
            for _task in due(state, options, len(state.versions) - 2):
                pass
        least = min(least, time.process_time() - began)
    return state, 1e3 * least / _BATCH


def _stored(state: RunState) -> dict[str, Any]:
    """Return what segments and a snapshot have of a state."""
    tables = state.tables
    return {
        "rows": [
            (t.kind, t.numbers.copy(), [*t.blocks(0, len(t))])
            for t in (tables.versions, tables.patches, tables.keyframes)
        ],
        "fields": {"run": state.run, "seq": state.seq, "last": "0" * 64, "epoch": 1, "count": len(state.versions)},
    }


def _open(stored: dict[str, Any]) -> RunState:
    tables = Tables(
        *(
            # Frames of its own, as if they had just been read.
            Table.of(kind, numbers, [Block(rows, bytes(bytearray(frame))) for rows, frame, _ in blocks])
            for kind, numbers, blocks in stored["rows"]
        )
    )
    return RunState.of(tables, **stored["fields"], tags={}, retired_versions={}, retired_keys={})


def _held_bytes(stored: dict[str, Any]) -> int:
    """Return what a state holds that was opened and asked."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    state = _open(stored)
    for version in (0, len(state.versions) // 2, len(state.versions) - 1):
        state.by_step(version), state.patches_into(version), state.patches_from(version), state.keyframe(version)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return held


def _route_ms(state: RunState) -> float:
    """Return what the first route of a state takes from its oldest version to its newest, with no keyframe."""
    return processor_ms(lambda: plan(state.copy(), len(state.versions) - 1, have=0, keyframes=False), repeats=2)


def records(rng: random.Random) -> Iterator[Record]:
    """Yield the commits and attachments of a run without an end, after its first epoch record."""
    seq = version = 0
    while True:
        common = {"run": "long", "epoch": 1, "write_id": _hex(rng, 32), "previous": None}
        common["created_at"] = _WHEN.format(version // 1000 % 60, version % 1000)
        seq += 1
        yield CommitRecord.model_construct(
            kind="commit",
            **common,
            seq=seq,
            version=version,
            step=version,
            parent=version - 1 if version else None,
            layout=_LAYOUT,
            patch=_patch(rng, version - 1, version) if version else None,
            keyframe=None if version else _keyframe(rng, 0),
            digest=_hex(rng, 32),
            changed=rng.randrange(10**7),
            cells=10**9,
            metadata={},
            files=None,
        )
        merged = [_patch(rng, version - span, version) for span in spans_into(version) if span not in (2, 8)]
        frames = [_keyframe(rng, version)] if version and version % _KEYFRAME_EVERY == 0 else []
        if merged or frames:
            seq += 1
            yield AttachRecord.model_construct(
                kind="attach", **common, seq=seq, patches=tuple(merged), keyframes=tuple(frames)
            )
        version += 1


def _patch(rng: random.Random, base: int, target: int) -> PatchRef:
    size = round(4 * _MEGABYTE * (target - base) ** 0.7 * rng.uniform(0.9, 1.1))
    return PatchRef.model_construct(
        base=base,
        target=target,
        coder="gap",
        changed=size // 2,
        object=_object(rng, keys.patch_key(base, target, _hex(rng, 32)), size),
        head_size=rng.randrange(10**4, 10**5),
        head_blake3=_hex(rng, 64),
        parts=None,
    )


def _keyframe(rng: random.Random, version: int) -> KeyframeRef:
    write_id = _hex(rng, 32)
    index = _object(rng, keys.keyframe_key(version, write_id, "model.safetensors.index.json"), 10_000)
    shard = _object(rng, keys.keyframe_key(version, write_id, "model-00001-of-00001.safetensors"), 2 * 10**9)
    return KeyframeRef.model_construct(version=version, index=index, shards=(shard,))


def _object(rng: random.Random, key: str, size: int) -> ObjectRef:
    return ObjectRef.model_construct(key=key, size=size, blake3=_hex(rng, 64))


def _hex(rng: random.Random, digits: int) -> str:
    return f"{rng.getrandbits(4 * digits):0{digits}x}"
