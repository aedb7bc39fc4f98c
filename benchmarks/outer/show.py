"""The end of each benchmark of outer rounds: its table, and its result file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.results import rows_of, write_result


def finish(console: Console, document: dict[str, Any], path: Path) -> None:
    """Print the rows and write the result file."""
    table = Table(title=document["title"])
    for name, justify in (("what", "left"), ("measured", "right"), ("limit", "left"), ("holds", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for row in rows_of(document):
        value, limit, verdict = row.texts()
        table.add_row(row.what, value, limit, verdict.strip("*"), style="bold red" if row.holds is False else None)
    console.print(table)
    write_result(path, document)
    console.print(f"written to {path}")
