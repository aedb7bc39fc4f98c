"""A process: one life of an actor, with its own way to the store, its own clock, and no threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Literal

from pulse_registry.errors import PulseError
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.options import ComputeOptions, NetworkOptions, Options
from pulse_registry.peers.peers import Peers
from pulse_registry.pull.lease import ReaderLease
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.store import PrefixStore, RetryStore, Store
from pulse_registry.store.wrappers.retry import RetryPolicy
from tests.scenarios.simulator.bucket import Bucket, Link
from tests.scenarios.simulator.truth import RUN
from tests.scenarios.simulator.weather import Weather
from tests.support.inline import Inline

_OBJECT_COST = 500
"""About a small patch: of several ways none is always the best."""


class Deferred(Executor):
    """A thread that works only when it is told to, or waited for: what is submitted waits until then, in order."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Take a call for later."""
        future = _Awaited(self)

        def work() -> None:
            try:
                future.set_result(function(*args, **kwargs))
            except PulseError as error:  # what else there may be, nobody expects, and ends the run
                future.set_exception(error)

        self._waiting.append(work)
        return future

    def drain(self) -> None:
        """Work until nothing waits."""
        while self._waiting:
            self.work()

    def work(self) -> None:
        """Do what has waited longest."""
        self._waiting.pop(0)()


class _Awaited(Future[Any]):
    """Of a call that is for later: who waits for it has the thread work."""

    def __init__(self, thread: Deferred) -> None:
        super().__init__()
        self._thread = thread

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._await()
        return super().exception()

    def result(self, timeout: float | None = None) -> Any:
        self._await()
        return super().result()

    def _await(self) -> None:
        while not self.done():
            self._thread.work()


class Process:
    """What an actor has between two crashes."""

    def __init__(self, bucket: Bucket, who: str, weather: Weather) -> None:
        self.world = world = bucket.world
        self.link, self.weather = Link(bucket, who, weather, bucket.url), weather
        self.skew = world.rng.uniform(-weather.skew, weather.skew)
        # Who writes may send a put again, and find its own; to who reads it makes no difference.
        self._patient = world.rng.random() < (0.05 if who.startswith("worker") else 0.5)
        self._queues: list[Deferred] = []
        self.backend: Literal["numba", "reference"] = "numba"
        self.surroundings = Dependencies(
            clock=lambda: world.moment(self.skew),
            new_id=lambda: world.rng.randbytes(16).hex(),
            threads=self._threads,
            monotonic=lambda: world.now + self.skew,
            sleep=world.pause,
            retrying=self._retrying,
        )

    def registry(self, peers: Peers | None = None, **options: Any) -> Registry:
        """Open the run; with ``peers``, as one of the ranks of a job."""
        publish = PushOptions(**({"dtype": "keep"} | options))
        return Registry(
            self.link,
            RUN,
            Options(
                push=publish,
                on_event=self._heard,
                network=NetworkOptions(object_cost=_OBJECT_COST),
                compute=ComputeOptions(backend=self.backend),
                peers=peers,
            ),
            dependencies=self.surroundings,
        )

    def lease(self, seconds: float) -> ReaderLease:
        """Return the lease of a reader, to be renewed by whoever asks for it."""
        store = PrefixStore(self.surroundings.retrying(self.link), RUN)
        reader = f"{self.link.who}-{self.surroundings.new_id()[:8]}"
        return ReaderLease(store, RUN, reader, seconds, events=Events(), monotonic=self.surroundings.monotonic)

    def work(self) -> None:
        """Let the process' background threads do what waits for them."""
        for queue in self._queues:
            queue.drain()

    def _heard(self, event: Event) -> None:
        """See that no object is avoided that was not damaged on its way."""
        if event.kind == EventKind.OBJECT_AVOIDED and not self.link.damaged:
            self.world.fail(f"{self.link.who} avoids {event.key} for no reason: {event.message}")

    def _threads(self, count: int, name: str) -> Executor:
        if count > 1 or name in ("pulse", "pulse-outer-checkpoint"):
            return Inline()
        self._queues.append(Deferred())
        return self._queues[-1]

    def _retrying(self, store: Store) -> Store:
        if not self._patient:
            return store
        world = self.world
        return RetryStore(store, RetryPolicy(clock=lambda: world.now, sleep=world.pause, rng=world.rng))
