"""Founding: a run begins with a version of another run, as its version 0, whose cells are a shared base of the root."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from pulse_registry.errors import LayoutMismatch
from pulse_registry.format.keys import layout_key
from pulse_registry.log import CommitDraft, LogWriter, NewId, RunState
from pulse_registry.push.layout_change import first_difference
from pulse_registry.store import Store, create
from pulse_schemas import KeyframeRef, Layout, VersionEntry


@dataclass(frozen=True, slots=True)
class BaseVersion:
    """A version of another run that a run is to begin with.

    Attributes:
        name: as messages and the version's metadata say it: ``run@version``.
        entry: what that run's log says of it.
        layout: of its tensors.
    """

    name: str
    entry: VersionEntry
    layout: Layout


class Base(Protocol):
    """A run's way to the version that it is to begin with."""

    def find(self) -> BaseVersion:
        """Return the version; nothing is written.

        Raises:
            NotFound, Gone: there is no such run or version.
        """
        ...

    def share(self, found: BaseVersion, spent: Collection[str]) -> KeyframeRef:
        """Make its cells a shared base, to which the run refers; return them as the keyframe of version 0.

        It is none of ``spent``, which the run's log has retired, and names no more.
        """
        ...


class Founding:
    """Writes version 0 of a run that has none. Not thread-safe: its owner has a lock."""

    def __init__(self, base: Base, store: Store, writer: LogWriter, new_id: NewId) -> None:
        """Prepare; no I/O yet.

        Args:
            base: where the version comes from.
            store: scoped to the run.
            writer: of its log.
            new_id: gives write ids.
        """
        self._base, self._store, self._writer, self._new_id = base, store, writer, new_id
        self._found: BaseVersion | None = None

    def check(self, state: RunState, layout: Layout) -> None:
        """Find the version, if the run has none of its own; nothing is written.

        Raises:
            LayoutMismatch: its tensors are others than those that are to be pushed.
            NotFound, Gone: there is no such run or version.
        """
        if len(state.versions):
            return
        found = self._base.find()
        if found.layout.id != layout.id:
            raise LayoutMismatch(
                f"run {state.run!r} can't begin with {found.name}: {first_difference(found.layout, layout)}. "
                "Nothing was written; without a base the first version is stored whole"
            )
        self._found = found

    def begin(self, state: RunState) -> None:
        """Commit version 0, if the run has no version and ``check`` found one for it; the writer has begun its term.

        Raises:
            Fenced, Conflict: another writer was faster.
            PulseError: the version can't be shared.
        """
        found = self._found
        if len(state.versions) or found is None:
            return
        keyframe, entry = self._base.share(found, state.spent_bases), found.entry
        create(self._store, layout_key(entry.layout), found.layout.canonical())
        draft = CommitDraft(
            version=0,
            step=entry.step,
            layout=entry.layout,
            digest=entry.digest,
            changed=entry.cells,
            cells=entry.cells,
            write_id=self._new_id(),
            keyframe=keyframe,
            metadata={"base": found.name},
        )
        self._writer.commit(draft)
