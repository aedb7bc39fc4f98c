"""Several roots behind one store, as whoever is to write sees them beside the verbs of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

S = TypeVar("S", covariant=True)
"""A `Store`, which itself tells of its roots."""


class Roots(Protocol[S]):
    """Chooses among roots that hold the same runs: one is a run's home, the others are copies: see `Store.roots`."""

    @property
    def stores(self) -> Sequence[S]:
        """The roots, each by itself, the nearest first."""

    def nearest(self, run: str) -> int:
        """Return which of the roots a run is read from now."""
        ...

    def write_at_home(self, run: str) -> None:
        """Find a run's home, and read and write the run there alone from now on.

        Raises:
            Conflict, Fenced: none of the roots is the run's home, or more than one says so.
            AccessDenied, CorruptObject, StoreUnavailable, UnsupportedFormat: it can't be told which one is.
        """
        ...

    def home(self, run: str) -> S:
        """Return the root that a run is written at, by itself, as ``write_at_home`` finds it.

        Raises:
            As ``write_at_home``.
        """
        ...
