"""The versions of rounds: each outer step is an ordinary version of the run, pushed by one member and compared by all.

A member goes into round r + 1 only from the version of round r, as the run has it. So versions and rounds never drift
apart, and weights that have diverged, by a broken device say, are found before they count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Protocol

from pulse_registry.errors import Diverged, Gone
from pulse_registry.outer.weights import OuterWeights


class RunVersions(Protocol):
    """The run, as far as rounds need it."""

    def digest(self, version: int) -> str | None:
        """Return the state digest of a version; None: it is not there yet.

        Raises:
            Gone: it was retired, which a newest version never is.
        """

    def push(self, version: int, weights: OuterWeights) -> None:
        """Commit weights as a version, if it is not there; returns, too, where another writer has taken over."""

    def close(self) -> None:
        """End what pushes."""


class RoundVersions:
    """The versions of one member's rounds. Not thread-safe."""

    def __init__(
        self,
        run: RunVersions,
        first: int,
        member: str,
        *,
        takeover_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            run: that the rounds are of.
            first: version of the weights that round 1 began with: version ``first + r`` is that of round r.
            member: this one's name.
            takeover_s: seconds that each member, in the order of their names, leaves to those before it.
            clock: monotonic, in seconds.
        """
        self._run, self._first, self._member = run, first, member
        self._takeover_s, self._clock = takeover_s, clock
        self._seen: tuple[int, float] | None = None

    def settle(self, round_: int, digest: str, members: Collection[str], push: Callable[[int], None]) -> bool:
        """Tell whether the version of a round is there, and is what this member holds; pushes it if it is its turn.

        Args:
            round_: the newest one whose step the weights have made.
            digest: of the weights of this member.
            members: that contributed to it.
            push: commits these weights as a version.

        Raises:
            Diverged: the run has other weights. Nothing of this member should count any more.
            StoreUnavailable: call again.
        """
        try:
            return self._settle(self._first + round_, round_, digest, members, push)
        except Gone:
            return True  # the others were faster by many rounds: this one compares the next version that it makes

    def turn_left(self, members: Collection[str]) -> float:
        """Return in how many seconds it is this member's turn to push the version that it has looked for."""
        looked = self._clock() if self._seen is None else self._seen[1]
        return max(0.0, looked + self._turn(members) * self._takeover_s - self._clock())

    def _settle(
        self, version: int, round_: int, digest: str, members: Collection[str], push: Callable[[int], None]
    ) -> bool:
        """See ``settle``; raises Gone where the version was retired, maybe since it was looked for first."""
        if self._seen is None or self._seen[0] != round_:
            self._seen = round_, self._clock()
        found = self._run.digest(version)
        if found is None and self._clock() - self._seen[1] >= self._turn(members) * self._takeover_s:
            began = self._clock()
            push(version)
            found = self._run.digest(version)
            if found is None:  # another one took over: it needs about as long, or both would go on to fence each other
                ended = self._clock()
                self._seen = round_, ended + (ended - began)
        if found is None:
            return False
        if found != digest:
            raise Diverged(
                f"round {round_}: version {version} has digest {found}, and the weights of member {self._member!r} "
                f"have {digest}: they were changed by something else than these rounds, or computed wrongly. Begin "
                "again from the newest version; if somebody else has pushed that, 'pulse outer restart' first lets the "
                "rounds begin anew there"
            )
        return True

    def _turn(self, members: Collection[str]) -> int:
        """Return how many members come before this one; who has not contributed comes after all."""
        order = sorted(members)
        return order.index(self._member) if self._member in order else len(order)
