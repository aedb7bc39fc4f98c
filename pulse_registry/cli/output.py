"""What commands print: JSON documents for scripts, lines and tables for people, errors for both.

Whatever a command prints goes through here. Much of it comes from a store, where others write: it is shown, and no
terminal and no markup acts upon it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pulse_registry.quoting import cut, json_text, printable, say

_PIPE_WIDTH = 240
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def print_json(document: Any, *, flush: bool = False) -> None:
    """Print one JSON document to stdout, on one line."""
    say(json_text(document), flush=flush)


def print_error(kind: str, message: str, *, json_output: bool) -> None:
    """Print an error: one line to stderr, or a JSON document to stdout."""
    if json_output:
        print_json({"error": kind, "message": cut(message)})
    else:
        say(f"pulse: {' '.join(cut(message).split())}", error=True)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print names and values, one a line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        say(f"{name:<{width}}  {value}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table; numbers are set to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    console = Console(width=width, highlight=False, markup=False, emoji=False)

    def text(value: str) -> str:
        return printable(value, sys.stdout.encoding)

    table = Table(
        title=None if title is None else text(title), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False
    )
    for number, column in enumerate(columns):
        right = bool(rows) and all(isinstance(row[number], int | float) for row in rows)
        table.add_column(text(column), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(text(_cell(value)) for value in row))
    console.print(table)


def size(nbytes: int) -> str:
    """Return a number of bytes for people: three digits and a unit of 1,000."""
    power = min((len(str(nbytes)) - 1) // 3, len(_UNITS) - 1)
    return f"{nbytes / 1000**power:.3g} {_UNITS[power]}"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
