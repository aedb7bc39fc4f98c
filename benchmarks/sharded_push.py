"""``python -m benchmarks.sharded_push``: a push by ranks, against one process, and against gathering at rank 0.

Each way is pushed by processes of its own, so that memory is its own; ways take turns, so that a busy machine slows
them alike. All are on this machine: more ranks than cores share them, and processor time tells more than time does.
How long the trainer waits is compared with a core for each process. A patch of the model is two parts of 64 groups, one
for each of two ranks to code, as ranks of a large model have about as many parts each.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.rank_processes import fork_ranks, tell, told
from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.timing import ratio

TITLE: Final = "Push by ranks, against one process"
COLUMNS: Final = 4096
SHARE: Final = 0.005
PINNED: Final = "pinned-"
MEMORY_MIB: Final = 256
MEMORY_BYTES: Final = 12
"""What a rank's push may take beyond its shard and shadow: so much, and so much for each cell that it changes."""
Found = dict[str, Any]
Way = tuple[str, int]
"""``whole``, ``ranks`` or ``gathered``, pinned or not, and how many processes."""
app = typer.Typer(add_completion=False)


def ways(sizes: Sequence[int]) -> list[Way]:
    """Return what is measured in each turn."""
    few = sizes[0]
    plain = [("whole", 1), *(("ranks", size) for size in sizes), ("gathered", sizes[-1])]
    return [*plain, (f"{PINNED}whole", 1), (f"{PINNED}ranks", few)]


def measure(mebibytes: int, pushes: int, repeats: int, sizes: Sequence[int] = (2, 4)) -> list[Row]:
    """Measure all ways, with each number of ranks; by turns."""
    found: dict[Way, list[Found]] = {}
    each = ways(sizes)
    for _ in range(repeats):
        figures = told("benchmarks.sharded_push", mebibytes, pushes, *(f"{way}:{size}" for way, size in each))
        for way, one in zip(each, figures, strict=True):
            found.setdefault(way, []).append(one)
    return rows_of(found, sizes)


def rows_of(found: dict[Way, list[Found]], sizes: Sequence[int]) -> list[Row]:
    """Return the figures, from what each repeat of each way and number of ranks has found."""
    few, many = sizes[0], sizes[-1]

    def over(key: str, way: Way, other: Way) -> float:
        return ratio([one[key] for one in found[way]], [one[key] for one in found[other]])

    def median(key: str, way: Way) -> float:
        return float(statistics.median(one[key] for one in found[way]))

    def at_most(key: str, what: str, value: float, unit: str, limit: float) -> Row:
        return Row(f"sharded.{key}", what, value, unit, "at most", limit)

    few_ranks, many_ranks, whole, gathered = ("ranks", few), ("ranks", many), ("whole", 1), ("gathered", many)
    alone, each = (f"{PINNED}whole", 1), (f"{PINNED}ranks", few)
    memory = MEMORY_MIB + MEMORY_BYTES * median("changed", many_ranks) / 2**20
    against = "against full_tensor() and push"
    return [
        at_most("time", f"end to end, {few} ranks, against unsharded", over("seconds", few_ranks, whole), "x", 1.4),
        at_most(
            "wait",
            f"trainer's wait, {few} ranks on a core each, against unsharded on one core",
            over("wait", each, alone),
            "x",
            0.58,
        ),
        at_most(
            "processor",
            f"processor time of {many} ranks, against unsharded",
            over("processor", many_ranks, whole),
            "x",
            1.8,
        ),
        at_most(
            "gathered.time", f"end to end, {many} ranks, {against}", over("seconds", many_ranks, gathered), "x", 0.35
        ),
        at_most(
            "gathered.memory",
            f"peak memory of rank 0 of {many}, {against}",
            over("memory", many_ranks, gathered),
            "x",
            0.4,
        ),
        at_most(
            "memory",
            f"memory of a push beyond shard and shadow, the most of {many} ranks",
            max(one["beyond"] for one in found[many_ranks]),
            "MiB",
            memory,
        ),
        at_most(
            "exchange",
            f"bytes exchanged a change that leaves its rank, {many} ranks",
            median("exchanged", many_ranks),
            "bytes",
            8.5,
        ),
        at_most(
            "requests",
            f"requests a push beyond parts, head and record, {many} ranks",
            median("requests", many_ranks),
            "requests",
            2,
        ),
        Row("sharded.seconds.whole", "a push, unsharded", median("seconds", whole), "s"),
        Row("sharded.seconds.few", f"a push, {few} ranks", median("seconds", few_ranks), "s"),
        Row("sharded.seconds.many", f"a push, {many} ranks", median("seconds", many_ranks), "s"),
        Row("sharded.seconds.gathered", f"full_tensor() and push, {many} ranks", median("seconds", gathered), "s"),
        Row("sharded.wait.whole", "trainer's wait, unsharded on one core", median("wait", alone), "s"),
        Row("sharded.wait.few", f"trainer's wait, {few} ranks on a core each", median("wait", each), "s"),
    ]


def be_rank(way: str, rank: int, folder: str, *, size: int, mebibytes: int, pushes: int) -> None:
    """Push as one rank; rank 0 prints what it took."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    from pulse_registry.options import Options
    from pulse_registry.push.options import PushOptions
    from pulse_registry.registry import Registry
    from pulse_registry.store import FileStore
    from pulse_registry.testing import CountingStore

    mesh, exchanged = init_device_mesh("cpu", (size,)), _counted_exchange(rank)
    before = _peak_mib(anew=True)
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
    highest, changed = 0.0, 0
    taken: list[tuple[float, float, float]] = []
    for step in range(1, pushes + 2):
        changed = 0
        for one in shards.values():
            flat = one.view(torch.int16).view(-1)
            index = torch.randint(len(flat), (int(len(flat) * SHARE),), generator=generator).unique()
            flat[index] += 1
            changed += len(index)
        if step == 2:  # the first patch does not count
            store.reset()
            exchanged.update(dict.fromkeys(exchanged, 0))
        dist.barrier()
        highest = max(highest, _peak_mib(anew=True))
        began, processor = time.perf_counter(), time.process_time()
        waited = push(step)
        taken.append((time.perf_counter() - began, time.process_time() - processor, waited))
    pushed = _peak_mib()
    mine = {
        "taken": taken[1:],
        "memory": max(highest, pushed) - before,
        "beyond": pushed - before - 2 * sum(one.nbytes for one in shards.values()) / 2**20,
        "changed": changed,
        "calls": sum(store.calls.values()),
        "needed": sum(verb == "put" for verb, _ in store.ledger),
        **exchanged,
    }
    every: list[Any] = [None] * size
    dist.all_gather_object(every, mine)
    registry.close()
    if rank == 0:
        tell(_summary(every, pushes))


def _peak_mib(*, anew: bool = False) -> float:
    """Return the most memory that this process had since it was asked anew."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    return found


def _summary(every: Sequence[Found], pushes: int) -> Found:
    """Return the figures of one push, of all ranks."""
    columns = [list(zip(*one["taken"], strict=True)) for one in every]
    changes = sum(one["changes"] for one in every)
    return {
        "seconds": statistics.median(columns[0][0]),
        "processor": statistics.median(map(sum, zip(*(column[1] for column in columns), strict=True))),
        "wait": statistics.median(columns[0][2]),
        "memory": every[0]["memory"],
        "beyond": max(one["beyond"] for one in every),
        "changed": max(one["changed"] for one in every),
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
        found["changes"] += sum(int(one.counts[homes[one.numbers] != rank].sum()) for one in changes)
        return to_homes(peers, geometry, changes, homes, *rest)

    def sent(self: TorchPeers, parts: Any, what: str = "") -> Any:
        if what == "changes":
            found["bytes"] += sum(memoryview(part).nbytes for to, part in enumerate(parts) if to != rank)
        return exchange(self, parts, what)

    setattr(sharded_patch, "to_homes", counted)  # noqa: B010
    setattr(TorchPeers, "exchange", sent)  # noqa: B010
    return found


@app.command(hidden=True)
def ranks(mebibytes: int, pushes: int, named: list[str]) -> None:
    """Run the ranks of each way, WAY:RANKS, one way after another, in forks of this process."""
    import torch._dynamo
    import torch.distributed.checkpoint
    import torch.distributed.tensor  # noqa: F401 - all that ranks need: once, and not in each fork

    from pulse_registry.weights.backend import backend_of

    backend_of("auto").warm_up(2)
    for one in named:
        way, _, ranks = one.partition(":")
        size, what = int(ranks), way.removeprefix(PINNED)
        life = partial(be_rank, what, size=size, mebibytes=mebibytes, pushes=pushes)
        fork_ranks(size, life, pinned=way.startswith(PINNED))


@app.callback(invoke_without_command=True)
def sharded_push(
    context: typer.Context,
    mebibytes: Annotated[int, typer.Option(help="Of the model.", min=1)] = 2048,
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
        "seed": 0,
        "settings": {"mebibytes": mebibytes, "pushes": pushes, "repeats": repeats, "changed": SHARE},
        "rows": [row.document() for row in found],
    }
    write_result(out, document)
    console.print(f"written to {out}")


if __name__ == "__main__":
    app()
