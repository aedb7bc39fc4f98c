"""Leg: one step of a route, by one patch or keyframe of the log."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from pulse_schemas import KeyframeRef, ObjectRef, PatchRef

LegKind = Literal["keyframe", "patch", "inverse", "undo"]

KEYFRAME_BYTES: Final = 16
"""Bytes of a keyframe whose checks and copies take as long as decoding one changed cell does, and moving it."""


class Leg(NamedTuple):
    """One step of a route: from version ``base`` (None: from nothing) to version ``target``.

    A named tuple, since a run's state has one for each of its objects.

    ``patch`` is set for kinds ``patch`` and ``inverse`` (then its base is this leg's target), ``keyframe``
    for kind ``keyframe``, and neither for ``undo``, which needs no object.
    """

    kind: LegKind
    base: int | None
    target: int
    patch: PatchRef | None = None
    keyframe: KeyframeRef | None = None

    @property
    def ref(self) -> PatchRef | KeyframeRef | None:
        """Reference of the object, as its record has it."""
        return self.patch or self.keyframe

    @property
    def nbytes(self) -> int:
        """Bytes to fetch."""
        return self.ref.size if self.ref else 0

    @property
    def objects(self) -> int:
        """Objects to fetch: a keyframe has its shards and an index. All parts of a patch together count as one."""
        if self.keyframe:
            return len(self.keyframe.shards) + 1
        return self.patch.objects if self.patch else 0

    @property
    def decoded(self) -> int:
        """Changed cells to decode; a keyframe counts as those that take as long as its bytes do."""
        if self.keyframe:
            return self.keyframe.size // KEYFRAME_BYTES
        return self.patch.changed if self.patch else 0

    @property
    def refs(self) -> tuple[ObjectRef, ...]:
        """The objects to fetch, as the record names them: of a patch in parts, the head."""
        if self.keyframe:
            return (self.keyframe.index, *self.keyframe.shards)
        return (self.patch.object,) if self.patch else ()
