"""What is known of a run of the demo so far: the display, the report and the chart are made from it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pulse_registry.demo.messages import (
    Checked,
    Event,
    Failed,
    Generated,
    Loaded,
    Published,
    Pulled,
    Role,
    Sharded,
    Stepped,
    Trained,
)
from pulse_registry.demo.settings import Settings


@dataclass(slots=True)
class WorkerState:
    """One worker. ``pulls`` holds the seconds since the run's start with each pull."""

    name: str
    role: Role
    pulls: list[tuple[float, Pulled]] = field(default_factory=list)
    completions: int = 0
    tokens: int = 0
    generating: float = 0.0
    checked: Checked | None = None

    @property
    def version(self) -> int | None:
        """Return the version that it holds."""
        return self.pulls[-1][1].version if self.pulls else None


@dataclass(slots=True)
class Board:
    """All events of a run, in order, by what they are about. ``shards``: of ranks, by the names of their processes."""

    settings: Settings
    began: float = field(default_factory=time.monotonic)
    loaded: Loaded | None = None
    published: dict[int, Published] = field(default_factory=dict)
    published_at: dict[int, float] = field(default_factory=dict)
    stepped: dict[int, Stepped] = field(default_factory=dict)
    workers: dict[str, WorkerState] = field(default_factory=dict)
    shards: dict[str, Sharded] = field(default_factory=dict)
    trained: Trained | None = None
    seconds: float = 0.0

    @property
    def newest(self) -> int:
        """Return the newest version that is known; -1: none yet."""
        return max(self.published, default=-1)

    @property
    def in_order(self) -> list[WorkerState]:
        """Return the workers that have pulled, in the order of the settings."""
        return [self.workers[name] for name in self.settings.worker_names if name in self.workers]

    @property
    def full_nbytes(self) -> int:
        """Return what all cells take."""
        return self.published[0].full_nbytes if 0 in self.published else 0

    def wanted(self, worker: str, version: int) -> str | None:
        """Return the SHA-256 of what a worker should hold at a version: all of the trainer's cells, or a rank's slices.

        None: no such version was pushed.
        """
        if version not in self.published:
            return None
        entry, ranks = self.published[version], self.settings.sharded_names
        return entry.slices[ranks.index(worker)] if worker in ranks else entry.sha256

    def tick(self) -> None:
        """Take the time: events that are added from now on happened now."""
        self.seconds = time.monotonic() - self.began

    def add(self, event: Event) -> None:
        """Take in what a process told."""
        match event:
            case Loaded():
                self.loaded = event
            case Sharded():
                self.shards[event.process] = event
            case Published():
                self.published[event.version] = event
                self.published_at[event.version] = self.seconds
            case Stepped():
                self.stepped[event.step] = event
            case Pulled():
                worker = self.workers.setdefault(event.worker, WorkerState(event.worker, event.role))
                worker.pulls.append((self.seconds, event))
            case Generated():
                worker = self.workers[event.worker]
                worker.completions += event.completions
                worker.tokens += event.tokens
                worker.generating += event.seconds
            case Checked():
                self.workers[event.worker].checked = event
            case Trained():
                self.trained = event
            case Failed():
                pass


def stage_seconds(pulled: Pulled) -> float:
    """Return what a pull took before it changed any weight: the worker serves meanwhile."""
    return sum(seconds for phase, seconds in pulled.phases.items() if phase != "apply")
