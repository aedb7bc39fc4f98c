"""The versions of a run, by number, of which those that were deleted long ago are forgotten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from pulse_registry.errors import Gone
from pulse_registry.log.cow import CowDict, CowObject
from pulse_schemas import VersionEntry


class History(CowObject, Sequence[VersionEntry]):
    """Versions 0 to ``len - 1``: ``history[n]`` is version n. Iteration, also reversed, and slices skip the forgotten.

    >>> history = History("math")
    >>> len(history), list(history)
    (0, [])
    """

    def __init__(self, run: str) -> None:
        """Begin without versions; ``run`` is for messages."""
        self._run = run
        self._entries = CowDict[int, VersionEntry]()  # by number, rising
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[VersionEntry]:
        return iter(self._entries.values())

    def __reversed__(self) -> Iterator[VersionEntry]:
        return map(self._entries.__getitem__, reversed(self._entries))

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
            numbers = range(*at.indices(self._count))
            if len(numbers) < len(self._entries) or numbers.step != 1:
                return [self._entries[number] for number in numbers if number in self._entries]
            return [entry for number, entry in self._entries.items() if number in numbers]
        number = range(self._count)[at]
        entry = self._entries.get(number)
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
        return self._entries.get(number)

    def since(self, number: int) -> Iterator[VersionEntry]:
        """Yield the versions from a number on that are not forgotten, in steps of a few, however many there are."""
        for at in range(max(0, number), self._count):
            entry = self._entries.get(at)
            if entry is None:
                yield from (entry for other, entry in self._entries.items() if other > at)
                return
            yield entry

    def append(self, entry: VersionEntry) -> None:
        """Add the next version."""
        self._entries[self._count] = entry
        self._count += 1

    def skip(self, number: int) -> None:
        """Take all versions up to ``number`` that were not added as forgotten."""
        self._count = max(self._count, number)

    def forget(self, number: int) -> VersionEntry:
        """Forget a version that is known; return it."""
        return self._entries.pop(number)
