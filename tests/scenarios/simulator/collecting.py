"""Collectors and operators: each runs the garbage collector now and then, and gives versions names before it does."""

from __future__ import annotations

from pulse_registry.errors import CorruptObject, InvalidArgument, NotFound, StoreUnavailable
from pulse_registry.retention import RetentionPolicy
from tests.scenarios.simulator.process import Process
from tests.scenarios.simulator.truth import Truth

GRACE_S = 120.0
ORPHAN_S = 300.0
_TAGS = ("best", "held-out", "release")


class Collecting:
    """One life of a collector."""

    def __init__(self, process: Process, truth: Truth) -> None:
        self._process, self._truth = process, truth
        self._world, self._rng = process.world, process.world.rng

    def live(self) -> None:
        """Collect, until a crash."""
        registry = self._process.registry()
        policy = RetentionPolicy(
            keep_last=self._rng.choice((3, 10, 25)),
            keep_every=self._rng.choice((None, 16)),
            keep_seconds=self._rng.choice((0.0, 30.0)),
            grace_seconds=GRACE_S,
            orphan_seconds=ORPHAN_S,
        )
        while True:
            self._world.pause(self._rng.uniform(10.0, 120.0))
            damaged = self._process.link.damaged
            try:
                live = [version.version for version in registry.versions()]
                if live and self._rng.random() < 0.2:
                    registry.tag(self._rng.choice(_TAGS), self._rng.choice([None, *live]))
                self._truth.collecting(self._process.link.who)
                if live:
                    registry.gc(policy, dry_run=self._rng.random() < 0.1)
            except StoreUnavailable:
                pass
            except InvalidArgument as error:
                if "was retired" not in str(error):
                    raise
            except (CorruptObject, NotFound) as error:
                if self._process.link.damaged == damaged:
                    self._world.fail(f"{self._process.link.who}: collecting failed for no reason: {error!r}")
            self._process.work()
