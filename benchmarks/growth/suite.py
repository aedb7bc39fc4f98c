"""All curves of what grows, measured one section after the other, as one document."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.growth.curve import Curve
from benchmarks.results import OUT, machine, versions, write_result

TITLE = "Growth: costs by the size of a run, a model, a bucket, a fleet"
SECTIONS: tuple[str, ...] = ("chains", "collection", "http", "runs", "snapshots", "state", "streams", "tensors")
"""Modules of this package, each with ``curves(quick: bool) -> list[Curve]``."""


def measured(sections: Sequence[str], quick: bool, say: Callable[[str], None]) -> list[Curve]:
    """Return the curves of some sections.

    Args:
        sections: names out of ``SECTIONS``.
        quick: small sizes, whose times mean nothing.
        say: is told what is measured next.
    """
    found: list[Curve] = []
    for name in sections:
        say(name)
        found += importlib.import_module(f"benchmarks.growth.{name}").curves(quick)
    return found


def document_of(curves: Sequence[Curve], seed: int | None = None) -> dict[str, Any]:
    """Return a result file's document."""
    return {
        "title": TITLE,
        "kind": "growth",
        "machine": machine(),
        "versions": versions(),
        "seed": seed,
        "rows": [curve.row().document() for curve in curves],
        "curves": [curve.document() for curve in curves],
    }


def with_others(document: dict[str, Any], earlier: dict[str, Any], measured: Sequence[str]) -> dict[str, Any]:
    """Return a document with the curves that an earlier one has of sections that were not measured anew.

    A curve's section is what its key begins with, up to the first dot.
    """
    merged = dict(document)
    for part in ("rows", "curves"):
        others = [entry for entry in earlier[part] if entry["key"].partition(".")[0] not in measured]
        merged[part] = sorted(
            [*others, *document[part]], key=lambda entry: SECTIONS.index(entry["key"].partition(".")[0])
        )
    return merged


def run(
    only: Annotated[
        list[str] | None, typer.Option(help="A section; may be given again. The file keeps the others.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Small sizes, to see that it runs.")] = False,
    out: Annotated[Path, typer.Option(help="Result file.")] = OUT / "growth.json",
) -> None:
    """Measure how costs grow with versions, tensors, links, runs and workers; write a result file."""
    for name in only or ():
        if name not in SECTIONS:
            raise typer.BadParameter(f"--only {name!r}; the sections are {', '.join(SECTIONS)}")
    console = Console()
    document = document_of(measured(only or SECTIONS, quick, lambda what: console.print(f"... {what}")))
    if only and out.exists():
        document = with_others(document, json.loads(out.read_text()), only)
    console.print(_table(document))
    write_result(out, document)
    console.print(f"written to {out}")


def _table(document: dict[str, Any]) -> Table:
    table = Table(title=document["title"])
    for name in ("what", "unit", "costs", "exponent"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for curve in document["curves"]:
        costs = ", ".join(f"{size:,}: {cost:,.3g}" for size, cost in curve["points"])
        table.add_row(f"{curve['what']} ({curve['x']})", curve["unit"], costs, f"{curve['exponent']:.2f}")
    return table
