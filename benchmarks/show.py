"""The end of a benchmark: its table, and its result file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.results import Row, rows_of, write_result


def rows_table(title: str, rows: Iterable[Row]) -> Table:
    """Return rows beside their limits, those that miss them in red."""
    table = Table(title=title)
    for name, justify in (("what", "left"), ("measured", "right"), ("limit", "left"), ("holds", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for row in rows:
        value, limit, verdict = row.texts()
        table.add_row(row.what, value, limit, verdict.strip("*"), style="bold red" if row.holds is False else None)
    return table


def finish(console: Console, document: dict[str, Any], path: Path, title: str | None = None) -> None:
    """Print the rows, under the document's title unless there is another, and write the result file."""
    console.print(rows_table(title or document["title"], rows_of(document)))
    write_result(path, document)
    console.print(f"written to {path}")
