"""The board: all that has happened in a run of the demo, and what follows from it."""

from __future__ import annotations

import bisect
import time
from collections import Counter

from pulse_registry.demo.vllm.events import (
    Committed,
    Completed,
    Event,
    Followed,
    NotFollowed,
    Serving,
    Stepped,
    Trained,
)


class Board:
    """Attributes are what was told, in order.

    Attributes:
        began: seconds since the epoch.
        versions: of the run, by number.
        rewards: by step.
        trained: the trainer's last word; None: it trains.
        serving: how each engine began, by its name.
        followed: the changes of each engine.
        failures: changes that failed, and were tried again.
        completions: of all clients.
    """

    def __init__(self) -> None:
        self.began = time.time()
        self.ended: float | None = None
        self.versions: dict[int, Committed] = {}
        self.rewards: dict[int, float] = {}
        self.trained: Trained | None = None
        self.serving: dict[str, Serving] = {}
        self.followed: dict[str, list[Followed]] = {}
        self.failures: list[NotFollowed] = []
        self.completions: list[Completed] = []

    def add(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case Stepped():
                self.rewards[event.step] = event.reward
            case Trained():
                self.trained = event
            case Committed():
                self.versions[event.version] = event
            case Serving():
                self.serving[event.engine] = event
                self.followed[event.engine] = []
            case Followed():
                self.followed[event.engine].append(event)
            case NotFollowed():
                self.failures.append(event)
            case Completed():
                self.completions.append(event)

    @property
    def newest(self) -> int:
        """Return the newest version; -1: there is none."""
        return max(self.versions, default=-1)

    def holds(self, engine: str) -> int | None:
        """Return the version that an engine serves; None: it does not yet."""
        if engine not in self.serving:
            return None
        changes = self.followed[engine]
        return changes[-1].version if changes else self.serving[engine].version

    def seconds(self, at: float) -> float:
        """Return a time as seconds since the run began."""
        return at - self.began

    def staleness(self) -> Counter[int]:
        """Return how many streamed tokens were so many versions behind the newest one when they came."""
        numbers = sorted(self.versions)
        times = [self.versions[number].at for number in numbers]
        behind = Counter[int]()
        for completion in self.completions:
            for span in completion.spans:
                for at in completion.tokens_at[span.first : span.end]:
                    newest = numbers[max(0, bisect.bisect_right(times, at) - 1)]
                    behind[max(0, newest - span.version)] += 1
        return behind

    def crossing(self) -> int:
        """Return how many completions were begun with one version and ended with another."""
        return sum(len({span.version for span in completion.spans}) > 1 for completion in self.completions)
