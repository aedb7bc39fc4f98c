"""A row of the table of hostile objects: what is changed in an honest run, who reads it, and the error that it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.support.records import DictStore

Forge = Callable[[DictStore], None]
Errors = type[Exception] | tuple[type[Exception], ...]
Rows = dict[str, tuple[Forge, Errors]]
Reader = Literal["pull", "join", "log", "hint", "trusted", "lease", "import"]


class Ignored(Exception):
    """No error: what is hostile is only a hint, and the reader goes on as if it were not there."""


@dataclass(frozen=True, slots=True)
class Family:
    """Rows about one kind of file.

    Attributes:
        run: the honest run that they change.
        reader: who reads it (see ``readers``).
        rows: by what is wrong with each.
    """

    run: str
    reader: Reader
    rows: Rows
