"""``python -m benchmarks stats``: what it costs to study a run of many versions: wall and processor time, and memory.

The steps of some recorded or synthetic states are committed over and over, until the run has as many versions as asked
for: a step is a delta, which any state can take. Each study runs in a process of its own, in one thread. Beside it
stands what it can't do without: to fetch and to decode each patch once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.states import Live, States, load_states
from benchmarks.synthetic import DEFAULT_CELLS, synthetic_states
from pulse_kernels import get_backend
from pulse_registry import ComputeOptions, PushOptions, Registry, open
from pulse_registry.format.directory import Directory
from pulse_registry.format.keys import patch_key
from pulse_registry.format.patch_coding import Coded, PatchFile, code_change
from pulse_registry.format.sparse_update import Delta, SparseUpdate
from pulse_registry.log import CommitDraft, LogReader, LogWriter, random_id, utc_now
from pulse_registry.pull.fetch import begin_patches
from pulse_registry.store import FileStore, PrefixStore
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import read_model

RUN = "studied"
SECONDS_LIMIT, BYTES_LIMIT = 60.0, 500e6
_ONE = ComputeOptions(threads=1)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process of its own took: ``peak`` bytes were resident at most; ``changed`` cells were counted."""

    wall_s: float
    cpu_s: float
    peak: int
    changed: int


def run(
    states: Annotated[Path | None, typer.Option(help="Folder of one safetensors file a state, in name order.")] = None,
    title: Annotated[str | None, typer.Option(help="What the recorded states are, in one line.")] = None,
    cells: Annotated[int, typer.Option(help="Size of synthetic states.", min=10_000)] = DEFAULT_CELLS,
    steps: Annotated[int, typer.Option(help="Steps of synthetic states.", min=1)] = 8,
    seed: Annotated[int, typer.Option(help="Of synthetic states.")] = 0,
    number: Annotated[int, typer.Option("--versions", help="Of the run.", min=2)] = 1000,
    out: Annotated[Path, typer.Option(help="Folder of result files.")] = OUT,
) -> None:
    """Measure studies of a long run; write a result file."""
    console = Console()
    chosen = synthetic_states(cells, steps, seed) if states is None else load_states(states, title)
    document = stats_document(chosen, number, console.print)
    for row in document["rows"]:
        console.print(f"{row['what']}: {row['value']:.4g} {row['unit']}")
    path = out / "stats" / f"{chosen.kind}.json"
    write_result(path, document)
    console.print(f"written to {path}")


def stats_document(states: States, number: int, say: Any = print) -> dict[str, Any]:
    """Make the run, and measure; return the result document."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="pulse-bench-") as folder:
        say(f"making a run of {number} versions")
        make_run(states, Path(folder), number)
        found = {}
        for what in ("decode", "patches", "weights"):
            say(f"... {what}")
            found[what] = measured(Path(folder), what)
    rows = [
        Row("changed", "changed cells a version", found["patches"].changed / (number - 1), "cells"),
        *_rows("patches", f"study of {number:,} versions from gap patches alone", found["patches"]),
        *_rows("weights", f"study of {number:,} versions with the weights", found["weights"]),
        _over("patches", "study from gap patches, over fetching and decoding each once", found),
        _over("weights", "study with the weights, over fetching and decoding each once", found),
    ]
    return {
        "title": f"Studies of {number:,} versions: {states.title}",
        "kind": states.kind,
        "seed": states.seed,
        "machine": machine(),
        "versions": versions(),
        "load_before": round(load, 2),
        "rows": [row.document() for row in rows],
    }


def _rows(key: str, what: str, cost: Cost) -> list[Row]:
    return [
        Row(f"{key}.wall", f"{what}: wall time", cost.wall_s, "s", "at most", SECONDS_LIMIT),
        Row(f"{key}.cpu", f"{what}: processor time", cost.cpu_s, "s"),
        Row(f"{key}.peak", f"{what}: resident at most", cost.peak / 1e6, "MB", "at most", BYTES_LIMIT / 1e6),
    ]


def _over(key: str, what: str, found: dict[str, Cost]) -> Row:
    return Row(f"{key}.over", f"{what}, processor time", found[key].cpu_s / found["decode"].cpu_s, "x")


def make_run(states: States, root: Path, number: int) -> None:
    """Push state 0, and commit so many versions in all: the steps of the states over and over."""
    backend, live = get_backend(), Live(states)
    with open(str(root), run=RUN, push=PushOptions(dtype="keep", keyframe_share=1e9)) as registry:
        registry.push(0, live.model())
        geometry = Geometry(registry.layout())
    steps = _coded(live, geometry, len(states.steps))
    live.go(0)
    weights = Weights.into(geometry, read_model(live.model()))
    store = PrefixStore(FileStore(root), RUN)
    reader = LogReader(store, RUN)
    digest = Digest.parse(reader.refresh().version(0).digest)
    writer = LogWriter(store, RUN, reader, utc_now, random_id, "benchmark")
    writer.begin()
    for version in range(1, number):
        entries, data = [], []
        for delta, coded in steps[(version - 1) % len(steps)]:
            group = geometry.groups[coded.entry.group]
            _, new, old_sum, new_sum = weights.step(backend, group, delta.index, delta.distance)
            weights.scatter(backend, group, delta.index, new)
            entries.append(replace(coded.entry, old_sum=old_sum, new_sum=new_sum))
            data.append(coded.data)
        file = PatchFile.of_directory(geometry, version - 1, version, Directory.of(entries), tuple(data))
        digest += file.delta
        write_id = random_id()
        key = patch_key(version - 1, version, write_id)
        store.put(key, [file.head, *file.groups])
        place = version, version, geometry.id, digest.hex(), file.changed, geometry.cells, write_id
        writer.commit(CommitDraft(*place, patch=file.ref(key)))


def _coded(live: Live, geometry: Geometry, count: int) -> list[list[tuple[Delta, Coded]]]:
    """Return what each step of the states changes in each group, as a delta and coded."""
    backend, weights = get_backend(), Weights.into(geometry, read_model(live.model()))
    before = {group.number: weights.copy_of(group) for group in geometry.groups}
    found: list[list[tuple[Delta, Coded]]] = []
    for step in range(count):
        live.go(step + 1)
        found.append([])
        for group in geometry.groups:
            after = weights.copy_of(group)
            change = SparseUpdate(group, *backend.diff(after, before[group.number]))
            before[group.number] = after
            if len(change.index):
                found[-1].append((change.delta(backend), code_change(backend, change, "gap", None)))
    return found


def measured(root: Path, what: str) -> Cost:
    """Do one thing in a process of its own, and return what it took."""
    command = [sys.executable, "-m", "benchmarks.stats", str(root), what]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Cost(**json.loads(done.stdout))


def measure(root: Path, what: str) -> Cost:
    """Do one thing here: ``decode`` all patches, or study the run from its ``patches``, or with its ``weights``."""
    with open(str(root), run=RUN, compute=_ONE) as registry:
        registry.warm_up()
        state = registry.state()
        began, cpu = time.perf_counter(), time.process_time()
        if what == "decode":
            changed = decode(registry, root)
        else:
            found = registry.stats(0, weights=what == "weights")
            changed = found.total.changed
            if len(found.steps) != len(state.versions) - 1:
                raise RuntimeError(f"{len(found.unseen)} steps were not seen")
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return Cost(wall_s, cpu_s, resident_at_most(), changed)


def resident_at_most() -> int:
    """Return this process's high-water mark in bytes; what ``getrusage`` tells is also that of who started it."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def decode(registry: Registry, root: Path) -> int:
    """Fetch each patch, and decode its groups; return how many cells they change."""
    store, backend, geometry = PrefixStore(FileStore(root), RUN), get_backend(), Geometry(registry.layout())
    changed = 0
    for ref in registry.state().patches:
        [patch] = begin_patches(store, RUN, geometry, [ref], map)
        for run in patch.missing(1 << 30, list(patch.entries)):
            patch.fetch(run)
        changed += sum(len(patch.decode(backend, geometry.groups[number]).index) for number in patch.entries)
    return changed


if __name__ == "__main__":
    print(json.dumps(asdict(measure(Path(sys.argv[1]), sys.argv[2]))))
