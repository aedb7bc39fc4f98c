"""``python -m benchmarks.turns OTHER -- ARGS``: one benchmark on two commits, by turns; figures side by side.

A machine that others use is never the same twice: two commits are compared by runs that alternate, each in a process of
its own, and by the medians of their figures. OTHER is a folder with the older commit (``git worktree add``); ARGS are
of ``python -m benchmarks``, as both commits know them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.results import OUT, Row, machine, rows_of, versions, write_result
from benchmarks.show import rows_table

HERE = Path(__file__).resolve().parent.parent
PACKAGES = (".", "kernels", "schemas", "server")
"""Folders of a checkout that hold its packages."""
app = typer.Typer(add_completion=False)


def measured(tree: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a checkout's own benchmark on its own code; return its result document.

    Raises:
        subprocess.CalledProcessError: it failed.
        ValueError: it wrote no result file, or several.
    """
    path = os.pathsep.join(str(tree / package) for package in PACKAGES)
    with tempfile.TemporaryDirectory(prefix="pulse-turns-") as out:
        command = [sys.executable, "-m", "benchmarks", *arguments, "--out", out]
        subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": path})
        found = sorted(Path(out).rglob("*.json"))
        if len(found) != 1:
            raise ValueError(f"{' '.join(command)}: it wrote {len(found)} result files, and one is read")
        document: dict[str, Any] = json.loads(found[0].read_text())
        return document


def side_by_side(old: Sequence[Sequence[Row]], new: Sequence[Sequence[Row]]) -> list[Row]:
    """Return, for each figure that all runs have, the medians of both commits, the new one's limit, and their ratio."""
    everywhere = set[str].intersection(*({row.key for row in run} for run in (*old, *new)))
    rows = []
    for row in new[-1]:
        if row.key not in everywhere:
            continue
        before, after = (statistics.median(_value(run, row.key) for run in runs) for runs in (old, new))
        rows.append(Row(f"{row.key}.old", f"{row.what}: before", before, row.unit))
        rows.append(Row(f"{row.key}.new", f"{row.what}: now", after, row.unit, row.sense, row.limit))
        if before:
            rows.append(Row(f"{row.key}.ratio", f"{row.what}: now / before", after / before, "x"))
    return rows


def _by_figure(runs: Sequence[Sequence[Row]]) -> dict[str, list[float]]:
    return {row.key: [_value(run, row.key) for run in runs] for row in runs[-1]}


def _value(run: Sequence[Row], key: str) -> float:
    return next(row.value for row in run if row.key == key)


def commit_of(tree: Path) -> str:
    """Return the commit that a checkout is at."""
    return subprocess.run(
        ["git", "-C", str(tree), "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


@app.command()
def turns(
    other: Annotated[Path, typer.Argument(help="Folder with the older commit.", exists=True, file_okay=False)],
    arguments: Annotated[list[str], typer.Argument(help="Of `python -m benchmarks`; behind `--`.")],
    title: Annotated[str, typer.Option(help="What is compared, in one line.")] = "Two commits by turns",
    runs: Annotated[int, typer.Option(help="Of each commit.", min=1)] = 5,
    out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "turns" / "turns.json",
) -> None:
    """Run a benchmark on two commits by turns; print the medians of their figures, and write a result file."""
    console = Console()
    trees = {"before": other.resolve(), "now": HERE}
    found: dict[str, list[Sequence[Row]]] = {name: [] for name in trees}
    for number in range(runs):
        for name, tree in trees.items():
            console.print(f"... run {number + 1}, {name}")
            run = measured(tree, arguments)
            found[name].append(rows_of(run))
    rows = side_by_side(found["before"], found["now"])
    console.print(rows_table(title, rows))
    document: dict[str, Any] = {
        "kind": "turns",
        "title": title,
        "machine": machine(),
        "versions": versions(),
        "seed": run.get("states", run).get("seed"),
        "settings": {
            "before": commit_of(trees["before"]),
            "now": commit_of(HERE),
            "runs": runs,
            "arguments": arguments,
        },
        "rows": [row.document() for row in rows],
        "runs": {name: _by_figure(each) for name, each in found.items()},
    }
    write_result(out, document)
    console.print(f"written to {out}")


if __name__ == "__main__":
    sys.exit(app())
