"""The result of an outer round, as one member sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round came to.

    Attributes:
        round, version: its number, and that of the version that it made.
        members: that contributed; ``late``: that it was of, too, and whose part comes with a later one.
        entries, nbytes: that this member sent to it; ``counts``: whether in time.
        cells: of the model.
    """

    round: int
    version: int
    members: tuple[str, ...]
    late: tuple[str, ...]
    counts: bool
    entries: int
    nbytes: int
    cells: int

    @property
    def density(self) -> float:
        """Return the share of the cells that this member sent."""
        return self.entries / max(1, self.cells)
