"""The body of a patch that is stored while its groups are coded: its head, which names them all, is known last."""

from __future__ import annotations

from pulse_registry.format.patch_coding import Coded, PatchFile
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import PatchRef


class PatchBody:
    """Keeps the coded groups of one patch as they come, and makes its head once all are there."""

    def __init__(self, geometry: Geometry, version: int, key: str, timeline: Timeline) -> None:
        """Begin the patch into a version from the one before, to be stored under a key."""
        self._geometry = geometry
        self._version = version
        self._key = key
        self._timeline = timeline
        self._groups: list[Coded] = []
        self._ref: PatchRef | None = None

    @property
    def ref(self) -> PatchRef:
        """What the patch's record says of it, once ``head`` was made."""
        if self._ref is None:
            raise RuntimeError("the patch is not complete yet")
        return self._ref

    def add(self, group: Coded) -> bytes:
        """Take the next group; return its bytes."""
        self._groups.append(group)
        return group.data

    def note(self, group: Coded) -> bytes:
        """Take the next group, and keep only what the head says of it; return its bytes."""
        self._groups.append(Coded(group.entry, b""))
        return group.data

    def head(self) -> bytes:
        """Return the head, once all groups were added."""
        timeline = self._timeline
        began = timeline.clock()
        file = PatchFile.of(self._geometry, self._version - 1, self._version, self._groups)
        joined = timeline.clock()
        timeline.note("code", began, joined, nbytes=len(file.head))
        self._ref = file.ref(self._key)
        timeline.note("hash", joined, nbytes=self._ref.size)
        return file.head
