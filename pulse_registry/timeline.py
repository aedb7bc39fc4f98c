"""Timeline of a push or a pull: when its phases began and ended. They overlap, as groups go through one by one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a call.

    Attributes:
        phase: its name.
        start, end: of its first and its last part, in seconds from the call's start.
        busy: seconds of work or of waiting for the store, of all threads together.
        nbytes: that it read, made or moved.
    """

    phase: str
    start: float
    end: float
    busy: float
    nbytes: int


class Timeline:
    """Collects the parts of phases from many threads, and adds them up when it is asked."""

    def __init__(self, clock: Clock = time.perf_counter, began: float | None = None) -> None:
        """Begin now, or at a time of this clock."""
        self.clock = clock
        self.began = clock() if began is None else began
        self._parts: list[tuple[str, float, float, float, int]] = []

    def copy(self) -> Timeline:
        """Return one with the same beginning and parts, to go on with alone."""
        other = Timeline(self.clock, self.began)
        other._parts = list(self._parts)
        return other

    def note(
        self, phase: str, start: float, end: float | None = None, *, busy: float | None = None, nbytes: int = 0
    ) -> None:
        """Note a part of a phase, in seconds of the clock; without an end it ends now, and was busy all the time."""
        end = self.clock() if end is None else end
        # One append, which needs no lock: this is called for each group of a push.
        self._parts.append((phase, start, end, end - start if busy is None else busy, nbytes))

    @contextmanager
    def during(self, phase: str, nbytes: int = 0) -> Iterator[None]:
        """Note the time of a block as a part of a phase, if it does not raise."""
        start = self.clock()
        yield
        self.note(phase, start, nbytes=nbytes)

    def phases(self) -> tuple[Phase, ...]:
        """Return all phases so far, in the order in which they began."""
        found: dict[str, Phase] = {}
        for name, start, end, busy, nbytes in list(self._parts):
            start, end = start - self.began, end - self.began
            old = found.get(name, Phase(name, start, end, 0.0, 0))
            found[name] = Phase(name, min(old.start, start), max(old.end, end), old.busy + busy, old.nbytes + nbytes)
        return tuple(sorted(found.values(), key=lambda phase: (phase.start, phase.end)))


@dataclass(slots=True)
class DecodeTimer:
    """Times the decoding within one group's work.

    Attributes:
        seconds: of all blocks so far.
    """

    timeline: Timeline
    seconds: float = 0.0

    @contextmanager
    def of(self, nbytes: int) -> Iterator[None]:
        """Note a block that decodes so many bytes, if it does not raise."""
        began = self.timeline.clock()
        yield
        ended = self.timeline.clock()
        self.seconds += ended - began
        self.timeline.note("decode", began, ended, nbytes=nbytes)


def extents(phases: Sequence[Phase]) -> dict[str, float]:
    """Return the seconds from each phase's start to its end."""
    return {phase.phase: phase.end - phase.start for phase in phases}


def stacked(phases: Sequence[Phase]) -> dict[str, float]:
    """Return seconds that add up: of each phase, in order, what those before it had not covered already."""
    covered, found = 0.0, {}
    for phase in phases:
        found[phase.phase] = max(0.0, phase.end - max(phase.start, covered))
        covered = max(covered, phase.end)
    return found
