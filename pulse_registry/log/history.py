"""The versions of a run, by number, of which those that were deleted long ago are forgotten."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from pulse_registry.errors import Gone
from pulse_registry.log.cow import CowObject
from pulse_registry.log.table import Table
from pulse_schemas import VersionEntry


class History(CowObject, Sequence[VersionEntry]):
    """Versions 0 to ``len - 1``: ``history[n]`` is version n. Iteration, also reversed, and slices skip the forgotten.

    >>> from pulse_registry.log.tables import VERSIONS
    >>> history = History("math", Table(VERSIONS))
    >>> len(history), list(history)
    (0, [])

    Attributes:
        table: their rows, by rising number.
    """

    def __init__(self, run: str, table: Table[VersionEntry], count: int = 0) -> None:
        """Take ``count`` versions, of which those in the table are not forgotten; ``run`` is for messages."""
        self.table = table
        self._run = run
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[VersionEntry]:
        return iter(self.table)

    def __reversed__(self) -> Iterator[VersionEntry]:
        return self._rows(range(len(self.table) - 1, -1, -1))

    @overload
    def __getitem__(self, at: int) -> VersionEntry: ...
    @overload
    def __getitem__(self, at: slice) -> list[VersionEntry]: ...
    def __getitem__(self, at: int | slice) -> VersionEntry | list[VersionEntry]:
        """Return a version, or those of a slice that are remembered.

        Raises:
            Gone: the version is forgotten.
            IndexError: it was never committed.
        """
        if isinstance(at, slice):
            return self._slice(range(*at.indices(self._count)))
        number = range(self._count)[at]
        entry = self.find(number)
        if entry is None:
            raise Gone(f"version {number} of run {self._run!r} was retired and deleted; pull another version")
        return entry

    @property
    def newest(self) -> VersionEntry | None:
        """The last version committed; None before the first.

        Raises:
            Gone: it is forgotten.
        """
        return self[-1] if self._count else None

    def find(self, number: int) -> VersionEntry | None:
        """Return a version; None if it is forgotten or was never committed."""
        row = self._row(number)
        return None if row is None else self.table.row(row)

    def knows(self, number: int) -> bool:
        """Tell whether a version was committed and is not forgotten."""
        return self._row(number) is not None

    def since(self, number: int) -> Iterator[VersionEntry]:
        """Yield the versions from a number on that are not forgotten, in steps of a few, however many there are."""
        table = self.table
        rows = range(self._first_row(number), len(table))
        return (table.glance(row) for row in rows if not table.is_dead(row))

    def append(self, entry: VersionEntry) -> None:
        """Add the next version."""
        self.table.append(entry)
        self._count += 1

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget versions that are known."""
        self.table.drop({row for row in map(self._row, numbers) if row is not None})

    def _rows(self, rows: range) -> Iterator[VersionEntry]:
        table = self.table
        return table.rows(row for row in rows if not table.is_dead(row))

    def _slice(self, numbers: range) -> list[VersionEntry]:
        if not numbers:
            return []
        low, high = sorted((numbers[0], numbers[-1]))
        rows = range(self._first_row(low), self._first_row(high + 1))
        if numbers.step < 0:
            rows = rows[::-1]
        known = self.table.column("version").data
        return [self.table.row(row) for row in rows if known[row] in numbers and not self.table.is_dead(row)]

    def _row(self, number: int) -> int | None:
        row = self._first_row(number)
        known = self.table.column("version").data
        return row if row < len(known) and known[row] == number and not self.table.is_dead(row) else None

    def _first_row(self, number: int) -> int:
        """Return the first row of the versions from a number on."""
        return bisect_left(self.table.column("version").data, number)
