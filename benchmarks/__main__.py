"""``python -m benchmarks``: measure, print, write; ``python -m benchmarks report``: renew docs/benchmarks.md."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.report import PAGE, update_page
from benchmarks.results import RESULTS, rows_of, write_result
from benchmarks.states import StatesError, load_states
from benchmarks.suite import MIN_REPEATS, run_suite
from benchmarks.synthetic import DEFAULT_CELLS, synthetic_states

app = typer.Typer(add_completion=False, help="Benchmarks of Pulse Registry.")


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    states: Annotated[Path | None, typer.Option(help="Folder of one safetensors file a state, in name order.")] = None,
    title: Annotated[str | None, typer.Option(help="What the recorded states are, in one line.")] = None,
    cells: Annotated[int, typer.Option(help="Size of synthetic states.", min=10_000)] = DEFAULT_CELLS,
    steps: Annotated[int, typer.Option(help="Steps of synthetic states.", min=1)] = 8,
    seed: Annotated[int, typer.Option(help="Of synthetic states.")] = 0,
    repeats: Annotated[int, typer.Option(help="Of each measurement.", min=MIN_REPEATS)] = 9,
    threads: Annotated[int, typer.Option(help="Of copies and XOR + zstd-1.", min=1)] = os.cpu_count() or 1,
    memory: Annotated[bool, typer.Option(help="Measure memory, in processes of its own.")] = True,
    name: Annotated[str | None, typer.Option(help="Of the result file; default: from the states.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of result files.")] = RESULTS,
) -> None:
    """Measure everything on recorded or synthetic states, print it beside its limits, and write a result file."""
    if context.invoked_subcommand is not None:
        return
    console = Console()
    if states is None:
        console.print(f"making synthetic states: {cells:,} cells, {steps} steps, seed {seed}")
        chosen = synthetic_states(cells, steps, seed)
    else:
        try:
            chosen = load_states(states, title)
        except StatesError as error:
            console.print(str(error), style="red")
            raise typer.Exit(2) from error
    document = run_suite(chosen, threads, repeats, memory=memory, say=lambda what: console.print(f"... {what}"))
    _print(console, document)
    path = out / f"{name or _name(chosen.kind, chosen.title)}.json"
    write_result(path, document)
    console.print(f"written to {path}")


@app.command()
def report() -> None:
    """Renew the tables of docs/benchmarks.md from the result files."""
    print(f"{PAGE}: {'renewed' if update_page() else 'current'}")


def _print(console: Console, document: dict[str, Any]) -> None:
    states = document["states"]
    table = Table(title=f"{states['title']} ({states['kind']})")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("limit")
    table.add_column("holds")
    for row in rows_of(document):
        value, limit, verdict = row.texts()
        table.add_row(row.what, value, limit, verdict.strip("*"), style="bold red" if row.holds is False else None)
    console.print(table)


def _name(kind: str, title: str) -> str:
    return "synthetic" if kind == "synthetic" else re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60]


if __name__ == "__main__":
    sys.exit(app())
