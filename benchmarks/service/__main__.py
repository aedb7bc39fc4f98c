"""``python -m benchmarks.service``: load; ``soak``: half the load for half an hour; ``followed``: many runs;
``fleet``: 200 runs and 1,000 workers; ``page``: their table in Chromium; ``attacked``: what others notice of attackers.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.results import OUT, rows_of, write_result
from benchmarks.service import fleet as fleets
from benchmarks.service.attacked import Attacked, run_attacked
from benchmarks.service.attackers import ATTACKS
from benchmarks.service.followed import Followed, run_followed
from benchmarks.service.soak import Soak, run_soak
from benchmarks.service.suite import Size, run_suite
from tests.support.servers import seaweedfs

app = typer.Typer(add_completion=False, help="Load on the service.")
FOLDER = OUT / "service"


@app.callback(invoke_without_command=True)
def load(
    context: typer.Context,
    connections: Annotated[int, typer.Option(min=1)] = 32,
    seconds: Annotated[int, typer.Option(min=1, help="Of each GET load.")] = 15,
    waiters: Annotated[int, typer.Option(min=1)] = 4000,
    rounds: Annotated[int, typer.Option(min=1, help="Pushes that wake them.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder of result files.")] = FOLDER,
) -> None:
    """Measure what one service process answers, over a real S3 server on this machine."""
    if context.invoked_subcommand is None:
        with _root() as (root, folder):
            size = Size(connections, seconds, waiters, rounds)
            _tell(run_suite(root, folder, size, os.environ), out / "load.json")


@app.command()
def soak(
    minutes: Annotated[float, typer.Option(min=0.05)] = 30.0,
    out: Annotated[Path, typer.Option(help="Folder of result files.")] = FOLDER,
) -> None:
    """Hold half the load and watch memory and file descriptors."""
    with _root() as (root, folder):
        _tell(run_soak(root, folder, Soak(minutes=minutes), os.environ), out / "soak.json")


@app.command()
def followed(
    runs: Annotated[int, typer.Option(min=1)] = 1_000,
    waited: Annotated[int, typer.Option(min=1, help="Runs of which somebody waits for news.")] = 20,
    rounds: Annotated[int, typer.Option(min=1)] = 20,
    latency_ms: Annotated[float, typer.Option(min=0, help="Of the store, a request.")] = 20.0,
    out: Annotated[Path, typer.Option(help="Folder of result files.")] = FOLDER,
) -> None:
    """Measure how far one process lags that follows many runs."""
    _tell(run_followed(Followed(runs, waited, rounds, latency_ms / 1e3)), out / "followed.json")


@app.command()
def fleet(
    runs: Annotated[int, typer.Option(min=1)] = 200,
    workers: Annotated[int, typer.Option(min=1)] = 1_000,
    trainers: Annotated[int, typer.Option(min=1, help="Runs into which somebody pushes once a second.")] = 20,
    seconds: Annotated[float, typer.Option(min=1)] = 60.0,
    out: Annotated[Path, typer.Option(help="Folder of result files.")] = FOLDER,
) -> None:
    """Measure one process with a fleet: GETs, the age of news in streams of all runs, memory."""
    with _root() as (root, folder):
        size = fleets.Size(runs=runs, workers=workers, trainers=trainers, seconds=seconds)
        _tell(fleets.run_fleet(root, folder, size, os.environ), out / "fleet.json")


@app.command()
def page(
    runs: Annotated[int, typer.Option(min=1)] = 200,
    seconds: Annotated[float, typer.Option(min=1)] = 15.0,
    chromium: Annotated[str, typer.Option(help="The browser's path.")] = "/usr/bin/chromium-headless-shell",
    out: Annotated[Path, typer.Option(help="Folder of result files.")] = FOLDER,
) -> None:
    """Measure what the page's table of runs costs a browser."""
    from benchmarks.service.fleet_page import Size as PageSize
    from benchmarks.service.fleet_page import run_page

    _tell(run_page(PageSize(runs=runs, seconds=seconds), chromium), out / "page.json")


@app.command()
def attacked(
    seconds: Annotated[float, typer.Option(min=1, help="Without attacks, and again with them.")] = 30.0,
    attacks: Annotated[str, typer.Option(help="Which, with commas between.")] = ",".join(ATTACKS),
    out: Annotated[Path, typer.Option(help="Folder of result files.")] = FOLDER,
) -> None:
    """Measure how long one token's GETs take while others attack, over a registry in a folder."""
    with tempfile.TemporaryDirectory(prefix="pulse-bench-") as folder:
        _tell(
            run_attacked(Path(folder), Attacked(seconds=seconds, attacks=attacks)),
            out / "attacked.json",
        )


@contextmanager
def _root() -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory(prefix="pulse-bench-") as folder, seaweedfs() as server:
        os.environ |= server.environment
        yield server.new_bucket().url("registry"), Path(folder)


def _tell(document: dict[str, Any], path: Path) -> None:
    console = Console()
    for row in rows_of(document):
        value, limit, verdict = row.texts()
        console.print(f"{row.what:60} {value:>16}  {limit:16} {verdict.strip('*')}")
    write_result(path, document)
    console.print(f"written to {path}")


if __name__ == "__main__":
    sys.exit(app())
