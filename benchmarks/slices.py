"""``python -m benchmarks slices``: a rank's slices, pulled from a patch and from nothing, against the whole model.

The policy is a mixture of experts in small: as many groups as one of some ten billion cells, each smaller. A rank holds
an eighth: of the experts (EP), of each tensor's rows, or of its columns (TP). All are pulled in turns, in one process.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.show import rows_table
from benchmarks.states import Live, States
from benchmarks.synthetic import synthetic_states
from benchmarks.timing import ratio
from pulse_registry import Slice
from pulse_registry.options import Options
from pulse_registry.pull.fetch import _WORTH_A_REQUEST, begin_patches
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.store import FileStore
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.wrappers.prefix import PrefixStore
from pulse_registry.weights.cell_space import Geometry
from tests.support.groups import small_groups

TITLE = "Slices of a sharded model, against the whole"
RUN, LAYERS, EXPERTS, RANKS, RANK = "bench", 1, 64, 8, 2
WAYS = ("whole", "tensors", "rows", "columns")
BYTES_LIMIT, TIME_LIMIT, DECODE_LIMIT = 1.1, 0.2, 1.15
_COUNTING = threading.Lock()
Boxes = dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""By tensor, the offsets and the sizes of what a rank holds."""


class ObjectBytes(FileStore):
    """A folder that counts the bytes that are read of objects; the log is no part of it."""

    nbytes = 0

    def get(self, key: str, byte_range: ByteRange | None = None, **limits: int) -> bytes:
        """Return bytes, and count them."""
        data = super().get(key, byte_range, **limits)
        with _COUNTING:
            self.nbytes += len(data) if "/objects/" in key else 0
        return data


@dataclass(slots=True)
class Pulls:
    """What the pulls of one way took, pull by pull."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)


def shapes(cells: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the experts of a policy of about so many cells: a number of groups and a fraction of one each."""
    wide = max(16, round(math.sqrt(cells / (LAYERS * EXPERTS * 3) / 3.5) / 8) * 8)
    return [
        (f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight", shape)
        for layer in range(LAYERS)
        for expert in range(EXPERTS)
        for name, shape in (
            ("gate", (wide, wide * 7 // 2)),
            ("up", (wide, wide * 7 // 2)),
            ("down", (wide * 7 // 2, wide)),
        )
    ]


def boxes(states: States, way: str) -> Boxes:
    """Return what the rank holds."""
    found: Boxes = {}
    for tensor in states.tensors:
        shape = tuple(tensor.shape)
        expert = int(tensor.name.split(".experts.")[1].split(".")[0])
        offsets, sizes = [0, 0], list(shape)
        dim = {"rows": 0, "columns": 1}.get(way)
        if dim is not None:
            offsets[dim] = RANK * shape[dim] // RANKS
            sizes[dim] = (RANK + 1) * shape[dim] // RANKS - offsets[dim]
        elif way == "tensors" and expert * RANKS // EXPERTS != RANK:
            continue
        found[tensor.name] = tuple(offsets), tuple(sizes)
    return found


def room(states: States, held: Boxes) -> dict[str, Any]:
    """Return memory for what the rank holds, with nothing in it."""
    made: dict[str, Any] = {}
    for name, array in Live(states).model().items():
        if name in held:
            offsets, sizes = held[name]
            memory = np.zeros(sizes, array.dtype)
            made[name] = memory if sizes == array.shape else Slice(memory, of=array.shape, at=offsets)
    return made


def groups_of(geometry: Geometry, held: Boxes) -> set[int]:
    """Return the numbers of the groups that hold a cell of the rank's, row by row: the plainest way."""
    found: set[int] = set()
    for number, tensor in enumerate(geometry.layout.tensors):
        if tensor.name not in held:
            continue
        (row, column), (rows, columns) = held[tensor.name]
        for at in range(row, row + rows):
            start = geometry.tensor_start(number) + at * tensor.shape[1] + column
            found.update(geometry.groups.meeting(start, start + columns))
    return found


def measure(states: States, repeats: int, folder: Path) -> tuple[list[Row], dict[str, Any]]:
    """Push all states, and pull them in each way; return the rows, and what is behind them."""
    store, live = ObjectBytes(folder), Live(states)
    options = Options(push=PushOptions(dtype="keep", coder="gap", keyframe_share=1e9))
    followed, fresh = ({way: Pulls() for way in WAYS} for _ in range(2))
    held = {way: boxes(states, way) for way in WAYS}
    with Registry(store, RUN, options) as trainer:
        trainer.warm_up()
        for step in range(repeats + 2):
            live.go(step)
            trainer.push(step, live.model())
    with Registry(store, RUN, options) as worker:
        ranks = {way: room(states, held[way]) for way in WAYS}
        for version in range(repeats + 2):
            for way in WAYS:
                pulls = pulled(store, worker, version, ranks[way])
                if version > 1:  # version 0 is the keyframe, and what is loaded once is no part of it
                    note(followed[way], pulls)
        live.go(repeats + 1)
        for way in WAYS:
            check(ranks[way], live.model(), held[way])
        for number in range(repeats + 1):
            for way in WAYS:
                pulls = pulled(store, worker, 0, room(states, held[way]))
                if number:
                    note(fresh[way], pulls)
        said = expected(worker, store, held, repeats + 1)
    shares = {way: sum(math.prod(sizes) for _, sizes in held[way].values()) / states.cells for way in WAYS}
    changed = {way: changed_share(states, repeats, held[way]) for way in WAYS}
    rows = [*rows_of_patches(followed, said, changed), *rows_of_keyframes(fresh)]
    kept = {
        route: {way: {"seconds": p.seconds, "processor": p.processor, "bytes": p.nbytes} for way, p in pulls.items()}
        for route, pulls in (("patch", followed), ("keyframe", fresh))
    }
    return rows, {"shares": shares, "changed_shares": changed, "pulls": kept}


def changed_share(states: States, step: int, held: Boxes) -> float:
    """Return which part of the cells that a step changes are the rank's: tensors do not change alike."""
    mine = 0
    for tensor, part in zip(states.tensors, states.steps[step], strict=True):
        if tensor.name in held:
            (row, column), (rows, columns) = held[tensor.name]
            at_row, at_column = np.divmod(part.index.astype(np.int64), tensor.shape[1])
            inside = (at_row >= row) & (at_row < row + rows) & (at_column >= column) & (at_column < column + columns)
            mine += int(np.count_nonzero(inside))
    return mine / states.changed(step)


def pulled(store: ObjectBytes, worker: Registry, version: int, into: Mapping[str, Any]) -> tuple[float, float, int]:
    """Pull a version; return the time, the processor's time, and the bytes read of objects."""
    store.nbytes = 0
    began, busy = time.perf_counter(), time.process_time()
    worker.pull(version, into=into, partial=True)
    return time.perf_counter() - began, time.process_time() - busy, store.nbytes


def note(pulls: Pulls, figures: tuple[float, float, int]) -> None:
    """Keep the figures of one pull."""
    for column, figure in zip((pulls.seconds, pulls.processor, pulls.nbytes), figures, strict=True):
        column.append(figure)  # type: ignore[attr-defined]


def check(rank: Mapping[str, Any], model: Mapping[str, Any], held: Boxes) -> None:
    """Compare what a rank holds with the model's cells."""
    for name, (offsets, sizes) in held.items():
        value = rank[name].tensor if isinstance(rank[name], Slice) else rank[name]
        part = model[name][tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))]
        if value.tobytes() != np.ascontiguousarray(part).tobytes():
            raise ValueError(f"{name}: the slice that was pulled is not that of the model")


def expected(
    worker: Registry, store: FileStore, held: Mapping[str, Boxes], version: int
) -> dict[str, tuple[int, int, int]]:
    """Return, way by way, the bytes that are to be read of a version's patch, those of its head, and of all of it."""
    state = worker.state()
    [ref] = state.patches_into(version)
    geometry = Geometry(worker.layout(version))
    [patch] = begin_patches(PrefixStore(store, RUN), RUN, geometry, [ref], map, head_only=True)
    stops = ref.head_size + np.cumsum(patch.entries.sizes)
    first = min(ref.object.size, max(_WORTH_A_REQUEST, ref.head_size))  # what the first request reads
    rest = {
        number: size
        for number, size, stop in zip(
            *(c.tolist() for c in (patch.entries.groups, patch.entries.sizes, stops)), strict=True
        )
        if stop > first
    }
    return {
        way: (first + sum(rest.get(n, 0) for n in groups_of(geometry, held[way])), ref.head_size, ref.size)
        for way in WAYS
    }


def rows_of_patches(
    pulls: Mapping[str, Pulls], said: Mapping[str, tuple[int, int, int]], shares: Mapping[str, float]
) -> list[Row]:
    """Return the figures of pulls along patches."""
    rows, whole = [], pulls["whole"]
    for way in WAYS[1:]:
        exact, head, size = said[way]
        found, limited = pulls[way], way == "tensors"
        share = found.nbytes[-1] / ((size - head) * shares[way] + head)
        limit: dict[str, Any] = {"sense": "at most", "limit": BYTES_LIMIT} if limited else {}
        faster: dict[str, Any] = {"sense": "at most", "limit": TIME_LIMIT} if limited else {}
        rows += [
            Row(
                f"patch.{way}.exact",
                f"{way}: bytes fetched of a patch, against its head and the groups that meet",
                found.nbytes[-1] / exact,
                "x",
                "at most",
                1.0,
            ),
            Row(
                f"patch.{way}.bytes",
                f"{way}: bytes fetched of a patch, against the share of its changes and the head",
                share,
                "x",
                **limit,
            ),
            Row(
                f"patch.{way}.seconds",
                f"{way}: time of a pull of one step, against the whole model's",
                ratio(found.seconds, whole.seconds),
                "x",
                **faster,
            ),
            Row(
                f"patch.{way}.processor",
                f"{way}: processor's time of such a pull, against the whole model's",
                ratio(found.processor, whole.processor),
                "x",
                **({"sense": "at most", "limit": DECODE_LIMIT} if way == "columns" else {}),
            ),
        ]
    return rows


def rows_of_keyframes(pulls: Mapping[str, Pulls]) -> list[Row]:
    """Return the figures of pulls from nothing."""
    rows, whole = [], pulls["whole"]
    for way in WAYS[1:]:
        found = pulls[way]
        rows += [
            Row(
                f"keyframe.{way}.seconds",
                f"{way}: time of a pull from nothing, against the whole model's",
                ratio(found.seconds, whole.seconds),
                "x",
            ),
            Row(
                f"keyframe.{way}.processor",
                f"{way}: processor's time of such a pull, against the whole model's",
                ratio(found.processor, whole.processor),
                "x",
            ),
        ]
    return rows


def run(
    cells: Annotated[int, typer.Option(help="Size of the synthetic policy.", min=10_000)] = 134_000_000,
    group_kib: Annotated[int, typer.Option(help="Size of a group; a real one has 16,384.", min=1)] = 512,
    repeats: Annotated[int, typer.Option(help="Of each measurement.", min=1)] = 7,
    seed: Annotated[int, typer.Option(help="Of the policy.")] = 0,
    out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "slices.json",
) -> None:
    """Measure pulls of slices, from a patch and from nothing, against pulls of the whole; write a result file."""
    console = Console()
    states = synthetic_states(cells, repeats + 1, seed, shapes_of=shapes)
    with tempfile.TemporaryDirectory() as folder, small_groups(group_kib << 10):
        rows, behind = measure(states, repeats, Path(folder))
    console.print(rows_table(TITLE, rows))
    settings = {"cells": states.cells, "group_kib": group_kib, "repeats": repeats, "ranks": RANKS, "rank": RANK}
    document = {
        "kind": "slices",
        "title": f"{TITLE}: {len(states.tensors)} experts' tensors, {states.cells:,} cells, groups of {group_kib} KiB",
        "seed": states.seed,
        "machine": machine(),
        "versions": versions(),
        "settings": settings,
        "rows": [row.document() for row in rows],
        **behind,
    }
    write_result(out, document)
    console.print(f"written to {out}")
