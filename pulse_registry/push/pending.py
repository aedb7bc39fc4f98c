"""A pending push: diffed, and neither committed nor failed yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pulse_registry.push.carried_files import CarriedFiles
from pulse_registry.push.future import PushFuture
from pulse_registry.push.shadow import Advance, Shadow
from pulse_registry.timeline import Timeline
from pulse_registry.weights.digest import Digest


@dataclass(slots=True, eq=False)
class PendingPush:
    """A version that was diffed, and is to be stored and committed.

    Attributes:
        version: its number, if all pushes before it are committed.
        step: the trainer's label of it.
        shadow: holds its cells.
        advance: what it changes; None for a version that is held by a keyframe alone.
        metadata: of the version.
        files: that go along with it.
        generation: of the baseline that it was diffed against; of another one, it can't be committed any more.
        timeline: of the push.
        future: of the push.
        replaced: the futures of the pushes whose place it took.
    """

    version: int
    step: int
    shadow: Shadow
    advance: Advance | None
    metadata: Mapping[str, Any]
    files: CarriedFiles
    generation: int
    timeline: Timeline
    future: PushFuture
    replaced: list[PushFuture] = field(default_factory=list)

    @property
    def digest(self) -> Digest:
        """Of its cells; waits for a device that is still summing them up."""
        return self.shadow.digest_at(self.version) if self.advance is None else self.advance.digest
