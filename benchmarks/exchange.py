"""``python -m benchmarks.exchange``: how fast ranks on one machine exchange changes, against torch's own all-to-all.

Each rank sends as much to every other. What the machine moves is what leaves the ranks, and a rank's part for itself
does not. Ranks that outnumber the cores share them: ratios tell more than rates.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.rank_processes import fork_ranks, tell, told
from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.timing import interleaved, ratio

TITLE = "Exchange between ranks"
RANKS = (2, 4, 8)
MEBIBYTES = 16
app = typer.Typer(add_completion=False)


def measure(ranks: Sequence[int], nbytes: int, repeats: int) -> list[Row]:
    """Measure exchanges in which each rank sends ``nbytes``, by numbers of ranks."""
    rows = []
    for size in ranks:
        [times] = told("benchmarks.exchange", size, nbytes, repeats)
        rows += rows_of(size, nbytes, times)
    return rows


def rows_of(size: int, nbytes: int, times: dict[str, list[float]]) -> list[Row]:
    """Return the figures of one number of ranks, from the seconds of each repeat on the coordinator."""
    each = nbytes // size
    leave = size * (size - 1) * each
    what = f"{size} ranks, {each * size / 2**20:.4g} MiB a rank"
    taken, empty = statistics.median(times["exchange"]), statistics.median(times["empty"])
    over = ratio(times["exchange"], times["all_to_all"])
    return [
        Row(f"exchange.{size}.rate", f"exchange, {what}", leave / taken / 1e9, "GB/s"),
        Row(f"exchange.{size}.ratio", f"its time, against one all_to_all_single: {what}", over, "x"),
        Row(f"exchange.{size}.empty", f"exchange of nothing, {size} ranks", empty * 1e6, "us"),
    ]


def be_rank(rank: int, size: int, nbytes: int, repeats: int) -> None:
    """Exchange as one rank; the coordinator prints its times."""
    import torch
    import torch.distributed as dist

    from pulse_registry.peers.torch_peers import TorchPeers

    peers = TorchPeers()
    each = nbytes // size
    given, taken = torch.full((size * each,), rank, dtype=torch.uint8), torch.empty(size * each, dtype=torch.uint8)
    parts = [memoryview(bytes([rank]) * each)] * size
    for sender, came in enumerate(peers.exchange(parts)):
        if came != bytes([sender]) * each:
            raise SystemExit(f"rank {rank} got other bytes from rank {sender}")
    times = interleaved(
        {
            "exchange": lambda: peers.exchange(parts),
            "all_to_all": lambda: dist.all_to_all_single(taken, given),
            "empty": lambda: peers.exchange([b""] * size),
        },
        repeats,
    )
    peers.close()
    if rank == 0:
        tell(times)


@app.command(hidden=True)
def ranks(size: int, nbytes: int, repeats: int) -> None:
    """Run the ranks of one measurement, in this process and its forks."""
    fork_ranks(size, lambda rank, _: be_rank(rank, size, nbytes, repeats))


@app.callback(invoke_without_command=True)
def exchange(
    context: typer.Context,
    mebibytes: Annotated[int, typer.Option(help="That each rank sends.", min=1)] = MEBIBYTES,
    repeats: Annotated[int, typer.Option(help="Of each measurement.", min=1)] = 15,
    out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "exchange.json",
) -> None:
    """Measure exchanges between 2, 4 and 8 ranks; print them, and write a result file."""
    if context.invoked_subcommand:
        return
    console = Console()
    found = measure(RANKS, mebibytes << 20, repeats)
    table = Table(title=TITLE)
    for column in ("what", "measured"):
        table.add_column(column)
    for row in found:
        table.add_row(row.what, row.texts()[0])
    console.print(table)
    document: dict[str, Any] = {
        "kind": "exchange",
        "title": TITLE,
        "machine": machine(),
        "versions": versions(),
        "settings": {"mebibytes": mebibytes, "repeats": repeats},
        "rows": [row.document() for row in found],
    }
    write_result(out, document)
    console.print(f"written to {out}")


if __name__ == "__main__":
    app()
