"""Workers: each follows the run, goes back, joins late, stages and thinks again, and looks at its weights each time."""

from __future__ import annotations

from pulse_registry.errors import CorruptObject, Gone, InvalidArgument, LayoutMismatch, NotFound, StoreUnavailable
from pulse_registry.registry import Registry
from tests.scenarios.simulator.policy import Policy
from tests.scenarios.simulator.process import Process
from tests.scenarios.simulator.truth import Truth

_POLL_S = 0.5
_LEASE_S = 60.0


class Worker:
    """One life of a worker; its weights die with it."""

    def __init__(self, process: Process, truth: Truth) -> None:
        self._process, self._truth = process, truth
        self._world, self._rng = process.world, process.world.rng
        self._policy: Policy | None = None
        self._held: int | None = None

    def live(self) -> None:
        """Follow the run, until a crash."""
        registry = self._process.registry()
        self._lease = self._process.lease(_LEASE_S)
        while True:
            self._world.pause(self._rng.uniform(0.1, 2.0) * _POLL_S)
            damaged = self._process.link.damaged
            before = None if self._policy is None else self._policy.bits
            try:
                self._turn(registry)
            except StoreUnavailable:
                pass
            except (CorruptObject, NotFound) as error:
                if self._process.link.damaged == damaged:
                    self._world.fail(f"{self._process.link.who}: a pull failed for no reason: {error!r}")
            if before is not None and self._policy is not None and self._policy.bits != before:
                self._look()
            self._lease.renew()

    def _turn(self, registry: Registry) -> None:
        """See what is new; go there, or elsewhere."""
        records = self._truth.records
        state = registry.state()
        if state.seq < records - 1:
            self._world.fail(f"{self._process.link.who} reads the log, and does not see record {records - 1}")
        newest = len(state.versions) - 1
        drawn = self._rng.random()
        if newest < 0 or drawn > 0.15 or (newest == self._held and drawn > 0.01):
            return
        if drawn > 0.02:
            self._pull(registry, None)
        elif drawn > 0.006:
            self._pull(registry, self._rng.randrange(max(0, newest - 40), newest + 1))
        elif drawn > 0.003:
            self._policy = self._held = None
        else:
            registry.verify("latest")

    def _pull(self, registry: Registry, version: int | None) -> None:
        """Bring the weights to a version, None for the newest one."""
        kind = self._truth.state(-1 if version is None else version).kind
        if self._policy is None or self._policy.kind != kind:
            self._policy, self._held = Policy(kind), None
        name = "latest" if version is None else version
        try:
            staged = registry.stage(name, into=self._policy.tensors, replace=self._rng.random() < 0.02)
        except Gone:
            if version is None or self._truth.versions[version].retired_at is None:
                raise
            return
        except LayoutMismatch:
            self._policy = self._held = None
            return
        with staged:
            if self._rng.random() < 0.1:
                self._world.pause(self._rng.choice((1.0, 100.0)) * self._rng.random())
            if self._policy.bits != (before := self._before()):
                self._world.fail(f"{self._process.link.who}: staging changed the weights")
            was = self._held
            self._held = staged.apply().version
            self._lease.hold(self._held)
            self._look()
            if was is None or self._rng.random() > 0.1:
                return
            try:
                staged.undo()
            except InvalidArgument:
                return
            self._held = was
            if self._policy.bits != before:
                self._world.fail(f"{self._process.link.who}: undo does not lead back to version {was}")

    def _before(self) -> bytes:
        """Return what the weights must hold."""
        assert self._policy is not None
        return Policy(self._policy.kind).bits if self._held is None else self._truth.state(self._held).bits

    def _look(self) -> None:
        """See that the weights are the version that they are said to be, bit for bit."""
        if self._policy is not None and self._policy.bits != self._before():
            self._world.fail(f"{self._process.link.who}: its weights are not version {self._held}")
