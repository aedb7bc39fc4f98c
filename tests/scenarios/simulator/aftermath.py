"""What anybody finds who comes later: every live version, a run that goes on, and nothing left over."""

from __future__ import annotations

from pulse_registry.log import LogReader
from pulse_registry.registry import Registry
from pulse_registry.retention import RetentionPolicy
from pulse_registry.store import PrefixStore
from tests.scenarios.simulator.bucket import Bucket
from tests.scenarios.simulator.collecting import GRACE_S, ORPHAN_S
from tests.scenarios.simulator.job import Job
from tests.scenarios.simulator.job_peers import Wire
from tests.scenarios.simulator.policy import Policy as Weights
from tests.scenarios.simulator.process import Process
from tests.scenarios.simulator.truth import RUN, Pushed, Truth
from tests.scenarios.simulator.weather import Weather
from tests.support.records import DictStore

_LONG_S = 2 * 3600.0
"""By then all that was on its way has arrived, every lease has run out, and every orphan is old."""


class Aftermath:
    """One process, in fine weather, that repairs nothing by hand."""

    def __init__(self, bucket: Bucket, truth: Truth, ranks: int = 0) -> None:
        """Come to a bucket; with ``ranks``, a job of so many comes, too."""
        self._bucket, self._truth, self._ranks = bucket, truth, ranks
        self._world = bucket.world
        self._process = Process(bucket, "afterwards", Weather())

    def live(self) -> None:
        """Look at everything."""
        self._world.pause(_LONG_S)
        registry = self._process.registry()
        state = registry.state()
        if dict(state.tags) != self._truth.tags:
            self._world.fail(f"the log has tags {state.tags}, and {self._truth.tags} were given")
        self._restore_all(registry)
        if self._ranks:
            self._go_on_by_ranks()
        self._go_on(registry)
        self._clean(registry)
        self._restore_all(registry)
        self._replay()

    def _restore_all(self, registry: Registry) -> None:
        """Restore every live version, from nothing, bit for bit."""
        found = {version.version for version in registry.versions()}
        if found != self._truth.live():
            self._world.fail(f"the log says that versions {sorted(found ^ self._truth.live())} are live, or are not")
        for number in sorted(found):
            pushed = self._truth.state(number)
            weights = Weights(pushed.kind)
            registry.pull(number, into=weights.tensors, replace=True)
            if weights.bits != pushed.bits:
                self._world.fail(f"version {number} can't be restored")

    def _go_on(self, registry: Registry) -> None:
        """Push as a new trainer."""
        weights = Weights(0)
        weights.train(self._world.rng)
        number = self._truth.pushed(Pushed(0, weights.bits), weights.digest)
        future = registry.push(number, weights.tensors, metadata={"push": number}, wait=False)
        self._process.work()
        self._truth.acknowledged(number, future.result().version)

    def _go_on_by_ranks(self) -> None:
        """Push as a new job: each push that is right is a version."""
        before = len(self._truth.versions)
        job = Job(self._bucket, self._truth, "later", Weather(), self._ranks, wire=Wire())
        job.live()
        self._world.wait(lambda: not job.living)
        if len(self._truth.versions) != before + job.right:
            self._world.fail(f"a later job pushed {job.right} times, from version {before} on, and not all are there")

    def _clean(self, registry: Registry) -> None:
        """Collect until all garbage is gone."""
        policy = RetentionPolicy(keep_last=10, keep_seconds=0.0, grace_seconds=GRACE_S, orphan_seconds=ORPHAN_S)
        for _ in range(4):
            registry.gc(policy, dry_run=False)
            self._world.pause(2 * ORPHAN_S)
        named = set(self._truth.objects())
        left = [key for key in self._bucket.objects if key.startswith((f"{RUN}/objects/", f"{RUN}/leases/"))]
        garbage = sorted(set(left) - named)
        if garbage:
            self._world.fail(f"{len(garbage)} objects are never collected, such as {garbage[0]}")

    def _replay(self) -> None:
        """Compare what the log's records say with what the snapshots say."""
        store = DictStore()
        store.objects = {key: stored.data for key, stored in self._bucket.objects.items()}
        opened = LogReader(PrefixStore(store, RUN), RUN).refresh()
        for key in [key for key in store.objects if "/snapshots/" in key or key.endswith("/head")]:
            store.delete(key)
        if LogReader(PrefixStore(store, RUN), RUN).refresh().to_snapshot() != opened.to_snapshot():
            self._world.fail("the snapshots tell another story than the records")
