"""What retire records have retired and no delete record has told of yet, oldest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

from pulse_registry.log.cow import CowDict, CowObject


class Retirement(NamedTuple):
    """What record ``seq`` retired."""

    seq: int
    versions: tuple[int, ...]
    keys: tuple[str, ...]


class Retirements(CowObject):
    """A queue of retirements."""

    def __init__(self) -> None:
        """Begin empty."""
        self._queue, self._oldest = CowDict[int, Retirement](), 0  # numbered, so that the oldest is found

    @classmethod
    def of(cls, versions: Mapping[int, int], keys: Mapping[str, int]) -> Self:
        """Return what is retired, by the records that did."""
        of_versions: dict[int, list[int]] = {}
        of_keys: dict[int, list[str]] = {}
        for version, seq in versions.items():
            of_versions.setdefault(seq, []).append(version)
        for key, seq in keys.items():
            of_keys.setdefault(seq, []).append(key)
        made = cls()
        for seq in sorted({*of_versions, *of_keys}):
            made.add(Retirement(seq, tuple(of_versions.get(seq, ())), tuple(of_keys.get(seq, ()))))
        return made

    def add(self, retirement: Retirement) -> None:
        """Add the newest."""
        self._queue[self._oldest + len(self._queue)] = retirement

    def take(self, seq: int) -> Iterator[Retirement]:
        """Take away and yield what records up to one retired, oldest first."""
        while (oldest := self._queue.get(self._oldest)) is not None and oldest.seq <= seq:
            del self._queue[self._oldest]
            self._oldest += 1
            yield oldest
