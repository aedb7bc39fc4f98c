"""Trainers: each pushes, in bursts, until it crashes or is fenced, and comes back as a new process."""

from __future__ import annotations

from concurrent.futures import Future

from pulse_registry.errors import (
    Conflict,
    CorruptObject,
    Fenced,
    InvalidArgument,
    NotFound,
    PulseError,
    StoreUnavailable,
)
from pulse_registry.registry import Registry
from pulse_registry.results import PushResult
from tests.scenarios.simulator.policy import Policy
from tests.scenarios.simulator.process import Process
from tests.scenarios.simulator.truth import Pushed, Truth

_STEP_S = 10.0


class Trainer:
    """One life of a trainer; ``eager`` ones never stop, the others come, take over, push a while and go."""

    def __init__(self, process: Process, truth: Truth, eager: bool) -> None:
        self._process, self._truth, self._eager = process, truth, eager
        self._world, self._rng = process.world, process.world.rng

    def live(self) -> None:
        """Push until fenced."""
        if not self._eager:
            self._world.pause(self._rng.uniform(50.0, 1000.0))
        registry = self._process.registry(
            coder=self._rng.choice(("gap", "gap", "class", "auto")),
            keyframe_every=self._rng.randrange(2, 24),
            keyframe_share=1e9,
            keyframe_coding=self._rng.choice(("raw", "raw", "raw", "exponents")),
            when_full=self._rng.choice(("wait", "coalesce")),
        )
        policy = self._begin(registry)
        left = 10**9 if self._eager else self._rng.randrange(1, 20)
        while left > 0:
            self._world.pause(self._rng.uniform(0.2, 2.0) * _STEP_S)
            if self._rng.random() < 0.003:
                policy = Policy(1 - policy.kind)
            burst = self._rng.choice((1, 1, 1, 2, 3))
            left -= burst
            if not self._push(registry, policy, burst):
                self._world.pause(self._rng.uniform(30.0, 1000.0))
                return

    def _begin(self, registry: Registry) -> Policy:
        """Go on from the newest version, as from a checkpoint, or from somewhere else."""
        if self._truth.versions and self._rng.random() < 0.8:
            newest = self._truth.versions[-1].state
            return Policy(newest.kind, newest.bits)
        policy = Policy(0)
        policy.train(self._rng)
        return policy

    def _push(self, registry: Registry, policy: Policy, burst: int) -> bool:
        """Push so many times in a row, without waiting for one another; return whether to go on."""
        fenced = False
        pushes: list[tuple[int, Future[PushResult]]] = []
        for _ in range(burst):
            policy.train(self._rng)
            number = self._truth.pushed(Pushed(policy.kind, policy.bits), policy.digest)
            try:
                future = registry.push(number, policy.tensors, metadata={"push": number}, wait=False)
            except (StoreUnavailable, NotFound, CorruptObject, Fenced, Conflict) as error:
                fenced |= self._failed(number, error)
            else:
                pushes.append((number, future))
        self._process.work()
        for number, future in pushes:
            try:
                result = future.result()
            except PulseError as error:
                fenced |= self._failed(number, error)
            else:
                (self._truth.coalesced if result.coalesced else self._truth.acknowledged)(number, result.version)
        return not fenced

    def _failed(self, number: int, error: PulseError) -> bool:
        """See that a failure is one that may be; return whether the trainer is fenced."""
        # What a stalled trainer has stored may be taken for garbage; then its record is refused, and nothing is lost.
        late = isinstance(error, InvalidArgument) and self._truth.counts.get("orphans")
        damaged = isinstance(error, CorruptObject | NotFound) and self._process.link.damaged
        if not (late or damaged or isinstance(error, StoreUnavailable | Fenced | Conflict)):
            self._world.fail(f"{self._process.link.who}: a push failed for no reason: {error!r}")
        if isinstance(error, Fenced | Conflict):
            self._truth.refused(number, repr(error))
        return isinstance(error, Fenced)
