"""Compactors: each attaches merged patches and keyframes, a few at a time, until it crashes."""

from __future__ import annotations

from pulse_registry.compaction import CompactOptions
from pulse_registry.errors import CorruptObject, NotFound, StoreUnavailable
from tests.scenarios.simulator.process import Process


class Compacting:
    """One life of a compactor."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world, self._rng = process.world, process.world.rng

    def live(self) -> None:
        """Work, until a crash."""
        registry = self._process.registry()
        options = CompactOptions(keyframe_every=self._rng.choice((None, 8, 30)))
        compactor = registry.compactor(options)
        while True:
            self._world.pause(self._rng.uniform(5.0, 60.0))
            damaged = self._process.link.damaged
            try:
                for _ in range(self._rng.randrange(1, 6)):
                    if compactor.step() is None:
                        break
            except StoreUnavailable:
                pass
            except (CorruptObject, NotFound) as error:
                if self._process.link.damaged == damaged:
                    self._world.fail(f"{self._process.link.who}: compaction failed for no reason: {error!r}")
            self._process.work()
