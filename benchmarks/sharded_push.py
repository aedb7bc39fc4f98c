"""``python -m benchmarks.sharded_push``: a push by ranks, against one process, and against gathering at rank 0.

Each way is pushed by processes of its own, so that memory is its own; ways take turns, so that a busy machine slows
them alike. All are on this machine: more ranks than cores share them, and processor time tells more than time does.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.timing import ratio

TITLE: Final = "Push by ranks, against one process"
COLUMNS: Final = 4096
SHARE: Final = 0.005
Found = dict[str, Any]
app = typer.Typer(add_completion=False)


def measure(mebibytes: int, pushes: int, repeats: int, sizes: Sequence[int] = (2, 4)) -> list[Row]:
    """Measure all ways, with each number of ranks; by turns."""
    found: dict[tuple[str, int], list[Found]] = {}
    ways = [("whole", 1), *(("ranks", size) for size in sizes), ("gathered", sizes[-1])]
    named = [f"{way}:{size}" for way, size in ways]
    for _ in range(repeats):
        command = [sys.executable, "-m", "benchmarks.sharded_push", "ranks", str(mebibytes), str(pushes), *named]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        for way, line in zip(ways, told.splitlines(), strict=True):
            found.setdefault(way, []).append(json.loads(line))
    return rows_of(found, sizes)


def rows_of(found: dict[tuple[str, int], list[Found]], sizes: Sequence[int]) -> list[Row]:
    """Return the figures, from what each repeat of each way and number of ranks has found."""
    few, many = sizes[0], sizes[-1]

    def over(key: str, way: tuple[str, int], other: tuple[str, int]) -> float:
        return ratio([one[key] for one in found[way]], [one[key] for one in found[other]])

    def median(key: str, way: tuple[str, int]) -> float:
        return float(statistics.median(one[key] for one in found[way]))

    few_ranks, many_ranks, whole, gathered = ("ranks", few), ("ranks", many), ("whole", 1), ("gathered", many)
    return [
        Row(
            "sharded.time",
            f"end to end, {few} ranks, against unsharded",
            over("seconds", few_ranks, whole),
            "x",
            "at most",
            1.4,
        ),
        Row(
            "sharded.wait",
            f"trainer's wait, {few} ranks, against unsharded",
            over("wait", few_ranks, whole),
            "x",
            "at most",
            0.58,
        ),
        Row(
            "sharded.processor",
            f"processor time of {many} ranks, against unsharded",
            over("processor", many_ranks, whole),
            "x",
            "at most",
            1.8,
        ),
        Row(
            "sharded.gathered.time",
            f"end to end, {many} ranks, against full_tensor() and push",
            over("seconds", many_ranks, gathered),
            "x",
            "at most",
            0.35,
        ),
        Row(
            "sharded.gathered.memory",
            f"peak memory of rank 0 of {many}, against full_tensor() and push",
            over("memory", many_ranks, gathered),
            "x",
            "at most",
            0.4,
        ),
        Row(
            "sharded.exchange",
            f"bytes exchanged a change that leaves its rank, {many} ranks",
            median("exchanged", many_ranks),
            "bytes",
            "at most",
            8.5,
        ),
        Row(
            "sharded.requests",
            f"requests a push beyond parts, head and record, {many} ranks",
            median("requests", many_ranks),
            "requests",
            "at most",
            2,
        ),
        Row("sharded.seconds.whole", "a push, unsharded", median("seconds", whole), "s"),
        Row("sharded.seconds.few", f"a push, {few} ranks", median("seconds", few_ranks), "s"),
        Row("sharded.seconds.many", f"a push, {many} ranks", median("seconds", many_ranks), "s"),
        Row("sharded.seconds.gathered", f"full_tensor() and push, {many} ranks", median("seconds", gathered), "s"),
    ]


def run_ranks(way: str, size: int, mebibytes: int, pushes: int, folder: str) -> None:
    """Be all ranks: forks of this process, which has imported torch; rank 0 prints what they took."""
    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            try:
                _run_rank(way, rank, size, mebibytes, pushes, folder)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    ends = [os.waitpid(child, 0)[1] for child in children]
    if any(ends):
        raise SystemExit("a rank failed")


def _run_rank(way: str, rank: int, size: int, mebibytes: int, pushes: int, folder: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    from pulse_registry.options import Options
    from pulse_registry.push.options import PushOptions
    from pulse_registry.registry import Registry
    from pulse_registry.store import FileStore
    from pulse_registry.testing import CountingStore

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(  # type: ignore[attr-defined]
            f"{folder}/meet", size
        ),
        rank=rank,
        world_size=size,
    )
    mesh, exchanged = init_device_mesh("cpu", (size,)), _counted_exchange(rank)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = (mebibytes << 20) // (4 * 2 * COLUMNS * size)
    generator = torch.Generator().manual_seed(rank)
    shards = {
        f"layers.{n}.weight": (torch.randn(rows, COLUMNS, generator=generator) / 50).to(torch.bfloat16)
        for n in range(4)
    }
    model: dict[str, Any] = {name: DTensor.from_local(one, mesh, [Shard(0)]) for name, one in shards.items()}
    store = CountingStore(FileStore(f"{folder}/registry"))
    registry = Registry(store, "run", Options(push=PushOptions(coder="gap", keyframe_share=1e9)))

    def push(step: int) -> float:
        """Push, and return how long the trainer waited."""
        began = time.perf_counter()
        future: Any = None
        if way == "ranks":
            future = registry.push(step, model, wait=False)
        else:
            whole = shards if way == "whole" else {name: one.full_tensor() for name, one in model.items()}
            if rank == 0:
                future = registry.push(step, whole, wait=False)
        waited = time.perf_counter() - began
        if future is not None:
            future.result()
        dist.barrier()
        return waited

    push(0)
    taken: list[tuple[float, float, float]] = []
    for step in range(1, pushes + 2):
        for one in shards.values():
            flat = one.view(torch.int16).view(-1)
            flat[torch.randint(len(flat), (int(len(flat) * SHARE),), generator=generator)] += 1
        if step == 2:  # the first patch does not count
            store.reset()
            exchanged.update(dict.fromkeys(exchanged, 0))
        dist.barrier()
        began, processor = time.perf_counter(), time.process_time()
        waited = push(step)
        taken.append((time.perf_counter() - began, time.process_time() - processor, waited))
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    mine = {"taken": taken[1:], "memory": memory, "calls": sum(store.calls.values()), **exchanged}
    objects = sum(verb == "put" for verb, _ in store.ledger)
    mine["needed"] = objects
    every: list[Any] = [None] * size
    dist.all_gather_object(every, mine)
    registry.close()
    if rank == 0:
        os.write(1, json.dumps(_summary(every, pushes)).encode() + b"\n")


def _summary(every: Sequence[Found], pushes: int) -> Found:
    """Return the figures of one push, of all ranks."""
    columns = [list(zip(*one["taken"], strict=True)) for one in every]
    changes = sum(one["changes"] for one in every)
    return {
        "seconds": statistics.median(columns[0][0]),
        "processor": statistics.median(map(sum, zip(*(column[1] for column in columns), strict=True))),
        "wait": statistics.median(columns[0][2]),
        "memory": every[0]["memory"],
        "exchanged": sum(one["bytes"] for one in every) / changes if changes else 0.0,
        "requests": sum(one["calls"] - one["needed"] for one in every) / pushes,
    }


def _counted_exchange(rank: int) -> dict[str, int]:
    """Count the changes that leave this rank for their groups' homes, and the bytes that they take."""
    from pulse_registry.peers.torch_peers import TorchPeers
    from pulse_registry.push import exchange as exchanges
    from pulse_registry.push import sharded_patch

    found = {"changes": 0, "bytes": 0}
    to_homes: Callable[..., Any] = exchanges.to_homes
    exchange = TorchPeers.exchange

    def counted(peers: Any, geometry: Any, changes: Any, homes: Any, *rest: Any) -> Any:
        found["changes"] += sum(len(one.index) for one in changes if homes[one.group.number] != rank)
        return to_homes(peers, geometry, changes, homes, *rest)

    def sent(self: TorchPeers, parts: Any, what: str = "") -> Any:
        if what == "changes":
            found["bytes"] += sum(memoryview(part).nbytes for to, part in enumerate(parts) if to != rank)
        return exchange(self, parts, what)

    setattr(sharded_patch, "to_homes", counted)  # noqa: B010
    setattr(TorchPeers, "exchange", sent)  # noqa: B010
    return found


@app.command(hidden=True)
def ranks(mebibytes: int, pushes: int, ways: list[str]) -> None:
    """Run the ranks of each way, WAY:RANKS, one way after another, in forks of this process."""
    import torch
    import torch._dynamo
    import torch.distributed.tensor

    from pulse_registry.weights.backend import backend_of

    torch.set_num_threads(1)
    backend_of("auto").warm_up(2)
    for one in ways:
        way, _, size = one.partition(":")
        with tempfile.TemporaryDirectory(prefix="pulse-bench-") as folder:
            run_ranks(way, int(size), mebibytes, pushes, folder)


@app.callback(invoke_without_command=True)
def sharded_push(
    context: typer.Context,
    mebibytes: Annotated[int, typer.Option(help="Of the model.", min=1)] = 1536,
    pushes: Annotated[int, typer.Option(help="Of each measurement.", min=1)] = 3,
    repeats: Annotated[int, typer.Option(help="Of all measurements, by turns.", min=1)] = 3,
    out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "sharded_push.json",
) -> None:
    """Measure pushes of one model by ranks, by one process, and gathered; print them, and write a result file."""
    if context.invoked_subcommand:
        return
    console, found = Console(), measure(mebibytes, pushes, repeats)
    table = Table(title=TITLE)
    for column in ("what", "measured", "demanded", "holds"):
        table.add_column(column)
    for row in found:
        table.add_row(row.what, *row.texts())
    console.print(table)
    document: dict[str, Any] = {
        "kind": "sharded_push",
        "title": TITLE,
        "machine": machine(),
        "versions": versions(),
        "settings": {"mebibytes": mebibytes, "pushes": pushes, "repeats": repeats, "changed": SHARE},
        "rows": [row.document() for row in found],
    }
    write_result(out, document)
    console.print(f"written to {out}")


if __name__ == "__main__":
    app()
