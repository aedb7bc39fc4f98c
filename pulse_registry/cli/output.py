"""What commands print: JSON documents for scripts, tables for people, errors for both."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

_PIPE_WIDTH = 240
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def print_json(document: Any) -> None:
    """Print one JSON document to stdout."""
    print(json.dumps(document, ensure_ascii=False))


def print_error(kind: str, message: str, *, json_output: bool) -> None:
    """Print an error: one line to stderr, or a JSON document to stdout."""
    if json_output:
        print_json({"error": kind, "message": message})
    else:
        print(f"pulse: {' '.join(message.split())}", file=sys.stderr)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print names and values, one a line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        print(f"{name:<{width}}  {value}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table; numbers are set to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for number, column in enumerate(columns):
        right = bool(rows) and all(isinstance(row[number], int | float) for row in rows)
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console.print(table)


def size(nbytes: int) -> str:
    """Return a number of bytes for people: three digits and a unit of 1,000."""
    power = min((len(str(nbytes)) - 1) // 3, len(_UNITS) - 1)
    return f"{nbytes / 1000**power:.3g} {_UNITS[power]}"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text.replace("[", "\\[")
