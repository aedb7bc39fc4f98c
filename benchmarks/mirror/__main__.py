"""``python -m benchmarks.mirror``: two S3 servers with a far link between, and a mirror over it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.mirror.suite import TITLE, Size, measure
from benchmarks.results import OUT, rows_of, write_result
from benchmarks.synthetic import synthetic_states
from tests.support.servers import seaweedfs


def main(
    mib: Annotated[int, typer.Option(help="Of the keyframe that is copied.", min=1)] = 1024,
    rounds: Annotated[int, typer.Option(help="Copies in each way.", min=1)] = 3,
    cells: Annotated[int, typer.Option(help="Of the versions that are followed.", min=10_000)] = 16_000_000,
    steps: Annotated[int, typer.Option(help="Versions that are followed.", min=1)] = 20,
    hosts: Annotated[int, typer.Option(help="Of the far region.", min=1)] = 8,
    out: Annotated[Path, typer.Option(help="Folder of result files.")] = OUT,
) -> None:
    """Measure a mirror over a link of 1 Gbit/s and 150 ms, beside boto3 and beside hosts that read far."""
    console = Console()
    states = synthetic_states(cells, steps, 0)
    with seaweedfs() as home, seaweedfs() as far:
        os.environ |= home.environment
        found = measure((home, far), states, Size(mib << 20, rounds, hosts=hosts), console.print)
    path = out / "mirror.json"
    write_result(path, found)
    table = Table("what", "value", "limit", "holds", title=TITLE)
    for row in rows_of(found):
        table.add_row(row.what, *row.texts())
    console.print(table)
    console.print(f"written to {path}")


if __name__ == "__main__":
    typer.run(main)
