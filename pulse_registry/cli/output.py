"""What commands print: JSON documents for scripts, lines and tables for people, errors for both.

Whatever a command prints goes through here. Much of it comes from a store, where others write: it is shown, and no
terminal and no markup acts upon it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from pulse_registry.quoting import cut, json_text, printable, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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


def line_of(fields: Sequence[str]) -> str:
    """Return fields as one line; on a terminal, without the last ones that it is too narrow for."""
    fields = list(fields)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    while width is not None and len(fields) > 1 and len("  ".join(fields)) > width:
        fields.pop()
    return "  ".join(fields)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table; numbers are set to the right."""
    console = console_of(None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(table_of(columns, rows, title=title))


def console_of(width: int | None = None) -> Console:
    """Return stdout as what tables are printed on, so wide; None: as the terminal."""
    from rich.console import Console

    return Console(width=width, highlight=False, markup=False, emoji=False)


def table_of(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None, width: int | None = None
) -> Table:
    """Return a table; numbers are set to the right.

    With ``width``, a row is a line of so many letters at most: the last columns are left out where there is no room for
    them, and the first one is cut where it takes more than half.
    """
    from rich import box
    from rich.table import Table

    cells = [[_text(_cell(value)) for value in row] for row in rows]
    heads = [_text(column) for column in columns]
    shown = len(heads) if width is None else _fitting(heads, cells, width)
    table = Table(
        title=None if title is None else _text(title), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False
    )
    for number, head in enumerate(heads[:shown]):
        right = bool(rows) and all(isinstance(row[number], int | float) for row in rows)
        table.add_column(
            head,
            justify="right" if right else "left",
            overflow="fold" if width is None else "ellipsis",
            no_wrap=width is not None,
            max_width=width // 2 if width is not None and number == 0 else None,
        )
    for row in cells:
        table.add_row(*row[:shown])
    return table


def _fitting(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> int:
    """Return how many columns have room, three letters apart and within edges of one; the first has always."""
    widths = [max(len(text) for text in column) for column in zip(heads, *rows, strict=True)]
    taken = accumulate((one + 3 for one in (min(widths[0], width // 2), *widths[1:])), initial=-1)
    return max(1, sum(one <= width for one in taken) - 1)


def _text(value: str) -> str:
    return printable(value, sys.stdout.encoding)


def size(nbytes: int) -> str:
    """Return a number of bytes for people: three digits and a unit of 1,000."""
    power = min((len(str(nbytes)) - 1) // 3, len(_UNITS) - 1)
    return f"{nbytes / 1000**power:.3g} {_UNITS[power]}"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
