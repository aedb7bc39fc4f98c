"""What retire records have retired and no delete record has told of yet, oldest first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

from pulse_registry.log.cow import CowDict, CowObject
from pulse_schemas import Snapshot


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
    def of(cls, snapshot: Snapshot) -> Self:
        """Return what a snapshot lists as retired, by the records that did."""
        versions: dict[int, list[int]] = {}
        keys: dict[int, list[str]] = {}
        for version in snapshot.retired_versions:
            versions.setdefault(version.seq, []).append(version.version)
        for key in snapshot.retired_keys:
            keys.setdefault(key.seq, []).append(key.key)
        made = cls()
        for seq in sorted({*versions, *keys}):
            made.add(Retirement(seq, tuple(versions.get(seq, ())), tuple(keys.get(seq, ()))))
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
