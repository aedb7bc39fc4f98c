"""How a run and its workers stand, in so few bytes that a list of hundreds of runs, or a stream about them, tells it.

What is said of the newest versions is kept from state to state: only versions that are new are looked at.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from heapq import nlargest
from itertools import pairwise
from statistics import median
from typing import Final

from pulse_registry.log import RunState
from pulse_registry.results import Version, describe
from pulse_schemas.api import RunBody, RunLine, RunSummary, VersionLine, VersionNote, WorkerSummary

_RECENT: Final = 50
"""Versions that "usual" speaks of, as the page has it."""
_TAGS: Final = 5
_TAG_BYTES: Final = 256
_NOTE_CHARACTERS: Final = 200
_HOME_CHARACTERS: Final = 100
NOTE: Final = "note"
"""The key of a version's metadata under which people say something of it."""


class Recent:
    """What is said of a run's newest versions. Not thread-safe."""

    def __init__(self) -> None:
        """Begin before the first version."""
        self._next = 0
        self._versions: deque[Version] = deque(maxlen=_RECENT)
        self._note: VersionNote | None = None

    def take(self, state: RunState) -> None:
        """Look at the versions that are new in a state."""
        count = len(state.versions)
        if count <= self._next:
            return
        for entry in state.versions_since(max(self._next, count - _RECENT)):
            told = describe(state, entry)
            self._versions.append(told)
            note = told.metadata.get(NOTE)
            if isinstance(note, str) and note.strip():
                self._note = VersionNote.model_construct(
                    version=told.version, text=_beginning(note.strip(), _NOTE_CHARACTERS)
                )
        self._next = count
        if self._note is not None and self._note.version < count - _RECENT:
            self._note = None

    @property
    def note(self) -> VersionNote | None:
        """The newest note."""
        return self._note

    @property
    def usual_s(self) -> float | None:
        """The median time between two versions."""
        times = [datetime.fromisoformat(version.created_at) for version in self._versions]
        between = [max(0.0, (after - before).total_seconds()) for before, after in pairwise(times)]
        return round(median(between), 3) if between else None

    @property
    def usual_nbytes(self) -> int | None:
        """The median size of a patch."""
        sizes = [version.nbytes for version in self._versions if version.kind == "patch"]
        return int(median(sizes)) if sizes else None


def run_summary(
    state: RunState, recent: Recent, workers: WorkerSummary, pause_s: float | None, avoided: int
) -> RunSummary:
    """Return how a run stands; ``recent`` has seen its state."""
    return RunSummary.model_construct(
        usual_s=recent.usual_s,
        usual_nbytes=recent.usual_nbytes,
        workers=workers,
        pause_s=None if pause_s is None else float(f"{pause_s:.3g}"),
        avoided=avoided,
        tags=_newest_tags(state),
        tagged=len(state.tags),
        note=recent.note,
    )


def run_line(body: RunBody, *, stale: bool, home: str | None = None) -> RunLine:
    """Return what a stream about many runs tells of one; ``home``: where it lives, if at another root."""
    told = body.latest
    latest = None
    if told is not None:
        latest = VersionLine.model_construct(
            version=told.version, step=told.step, kind=told.kind, nbytes=told.nbytes, created_at=told.created_at
        )
    return RunLine.model_construct(
        run=body.run,
        seq=body.seq,
        versions=body.versions,
        latest=latest,
        full_nbytes=body.full_nbytes,
        summary=body.summary,
        stale=stale,
        home=None if home is None else _beginning(home, _HOME_CHARACTERS),
    )


def _newest_tags(state: RunState) -> dict[str, int]:
    """Return the tags of the newest versions, as many as there is room for."""
    newest = nlargest(_TAGS, state.tags.items(), key=lambda tag: (tag[1], tag[0]))
    chosen: dict[str, int] = {}
    room = _TAG_BYTES
    for name, version in newest:
        room -= len(name)
        if room >= 0:
            chosen[name] = version
    return chosen


def _beginning(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
