"""Somebody else who pushes to a run that others train in rounds, and then lets these begin anew from there."""

from __future__ import annotations

import numpy as np

from pulse_registry.errors import Conflict, CorruptObject, InvalidArgument, NotFound, StoreUnavailable
from pulse_registry.runtime.outer import OuterRun
from tests.scenarios.simulator.policy import ROUNDS, Policy
from tests.scenarios.simulator.process import Process
from tests.scenarios.simulator.rounds_truth import RoundsTruth, bf16

_STEP = 1_000_000
_MAY_BE = (StoreUnavailable, Conflict, CorruptObject, NotFound)


class Outsider:
    """One life: a push or two, now and then none, and a restart a while later."""

    def __init__(self, process: Process, truth: RoundsTruth) -> None:
        self._process, self._truth = process, truth
        self._world, self._rng = process.world, process.world.rng

    def live(self) -> None:
        """Push, and let the rounds begin anew."""
        self._world.pause(self._rng.uniform(100.0, 2000.0))
        if self._truth.rounds < 1:
            return
        if not self._truth.astray:
            self._push(self._rng.choice((0, 1, 1, 1, 2)))
        self._world.pause(self._rng.uniform(0.0, 200.0))
        while self._truth.astray and not self.restart():
            self._world.pause(self._rng.uniform(1.0, 30.0))

    def restart(self) -> bool:
        """Let the rounds begin anew from the newest version; tell whether that was done."""
        try:
            OuterRun(self._process.registry()._runtime).restart()
        except (StoreUnavailable, CorruptObject, NotFound):
            return False
        except InvalidArgument as error:
            if self._truth.astray:  # else another one was faster, and rounds have ended since
                self._world.fail(f"{self._process.link.who}: rounds can't begin anew: {error!r}")
        return True

    def _push(self, count: int) -> None:
        noise = np.random.default_rng(self._rng.getrandbits(32))
        registry = self._process.registry()
        try:
            for number in range(count):
                drawn = noise.standard_normal(len(Policy(ROUNDS).bits) // 2) * 0.02
                policy = Policy(ROUNDS, bf16(drawn.astype(np.float32)))
                self._truth.others[policy.digest] = policy.bits
                future = registry.push(_STEP + number, policy.tensors, wait=False)
                self._process.work()
                future.result()
        except _MAY_BE:
            pass
