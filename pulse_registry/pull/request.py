"""Request of a pull: which version, into which weights, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulse_registry.log import RunState
from pulse_registry.pull.destination import Destination
from pulse_registry.pull.fetch import Early, nothing_early
from pulse_registry.pull.given import Given
from pulse_registry.pull.replica import UndoStep
from pulse_registry.timeline import Timeline
from pulse_registry.weights.digest import Digest
from pulse_schemas import VersionEntry


@dataclass(frozen=True, slots=True)
class PullRequest:
    """One version for one set of weights.

    Attributes:
        state: the run, as it was last seen.
        entry: the version.
        destination: the live weights, of the version's layout.
        timeline: notes ``route``, ``fetch``, ``decode`` and ``verify``; began with the call.
        base: the version that they hold, of the same layout; None: nothing known.
        undo: the steps that can be taken back in memory, newest first.
        new: the weights hold nothing and nobody has seen them: they may be given other memory.
        given: what leads slices there, where another rank has fetched and decoded it; None: a route's objects do.
        early: gives what was read of a patch while the log was still looked at.
    """

    state: RunState
    entry: VersionEntry
    destination: Destination
    timeline: Timeline
    base: VersionEntry | None = None
    undo: Sequence[UndoStep] = ()
    new: bool = False
    given: Given | None = None
    early: Early = nothing_early

    @property
    def base_digest(self) -> Digest | None:
        """The state digest of what the weights hold; None: nothing known."""
        return None if self.base is None else Digest.parse(self.base.digest)
