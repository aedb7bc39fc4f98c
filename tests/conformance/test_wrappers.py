"""Whatever is wrapped around a store, it is still one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from pulse_registry.cli.progress import Meter, MeteredStore
from pulse_registry.doctor.cleaning import LedgerStore
from pulse_registry.store import MemoryStore, RetryStore, Store, WrapperStore
from pulse_registry.store.wrappers.measured import MeasuredStore, ReadTimes
from pulse_registry.store.wrappers.retry import TOTAL_S, RetryPolicy
from pulse_registry.testing import CountingStore, Fault, FaultStore, LatencyStore, StoreTests, Subject
from pulse_server.runs.documents import DocumentStore
from pulse_server.telemetry.metrics import Metrics
from pulse_server.telemetry.store_metrics import MetricsStore
from tests.support.clock import Clock

_names = (f"test-conformance-wrappers-{number}" for number in itertools.count())


def memory() -> MemoryStore:
    return MemoryStore(next(_names))


def retrying(store: Store, total_s: float = TOTAL_S) -> RetryStore:
    clock = Clock()
    return RetryStore(store, RetryPolicy(total_s=total_s, clock=clock, sleep=clock.sleep, rng=random.Random(1)))


WRAPPERS: dict[str, Callable[[Store], Store]] = {
    "wrapper": WrapperStore,
    "counting": CountingStore,
    "retry": retrying,
    "retry over a store that fails half the time": lambda store: retrying(
        FaultStore(
            store,
            [Fault("fail_before", probability=0.5), Fault("fail_after", verb="list", probability=0.5)],
            seed=7,
        ),
        total_s=1e9,
    ),
    "fault": lambda store: FaultStore(store, []),
    "latency": lambda store: LatencyStore(store, latency_s=0.0),
    "timed": lambda store: MeasuredStore(store, ReadTimes()),
    "metered": lambda store: MeteredStore(store, Meter("", quiet=True)),
    "ledger": LedgerStore,
    "metrics": lambda store: MetricsStore(store, Metrics()),
    "documents": DocumentStore,
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS.keys())
class TestWrappers(StoreTests):
    @pytest.fixture
    def subject(self, wrap: Callable[[Store], Store]) -> Subject:
        below = memory()
        return Subject(store=wrap(below), raw_get=below.get, raw_set=below.put)
