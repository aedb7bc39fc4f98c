"""The state digest: 128 bits over all cells of a version, kept up to date by patches alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Digest:
    """Two lanes, each a sum of h(i, v) mod 2**64 (see docs/spec.md). Adds and subtracts lane by lane.

    >>> a, b = Digest(1, 2**64 - 1), Digest(2, 3)
    >>> (a + b - b) == a
    True
    >>> Digest.parse(a.hex()) == a
    True
    """

    lane_0: int = 0
    lane_1: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest((self.lane_0 + other.lane_0) & _MASK, (self.lane_1 + other.lane_1) & _MASK)

    def __sub__(self, other: Digest) -> Digest:
        return Digest((self.lane_0 - other.lane_0) & _MASK, (self.lane_1 - other.lane_1) & _MASK)

    def hex(self) -> str:
        """Return 32 lower-case hex digits, lane 0 first, most significant digit first."""
        return f"{self.lane_0:016x}{self.lane_1:016x}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``hex`` wrote."""
        return cls(int(text[:16], 16), int(text[16:], 16))
