"""Many runs followed by one process: how long after a record is in the bucket its waiter knows; what an append takes.

The service's own feeds, over a store in memory that takes as long for each request as a bucket does. Nobody waits for
news of most of the runs: somebody asked for them a while ago.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Row
from benchmarks.service.suite import Say, document
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange
from pulse_registry.testing.latency import LatencyStore
from pulse_server.runs.feed import RunFeed
from pulse_server.service import Service
from pulse_server.settings import Settings
from pulse_server.telemetry.metrics import Metrics
from tests.support.apps import LAYOUT, fill, run_of, store_objects, store_record
from tests.support.records import DictStore, Script


@dataclass(frozen=True, slots=True)
class Followed:
    """How many runs are followed, for how many of them somebody waits, and how fast the store is.

    Attributes:
        runs: that were asked for.
        waited: those for which somebody waits, at least: each measurement has one with as few, and one with all.
        rounds: records pushed, and appended, in each.
        latency_s: of the store, a request.
        settle_s: from the last request to the first measurement.
    """

    runs: int = 1_000
    waited: int = 20
    rounds: int = 20
    latency_s: float = 0.02
    settle_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Lag:
    """Milliseconds, sorted: from a record's being in the bucket to its waiter's waking; of appends through the service.

    ``looks``: requests that the store was sent a second meanwhile.
    """

    waited: int
    woken_ms: tuple[float, ...]
    appended_ms: tuple[float, ...]
    looks: float


def run_followed(size: Followed, say: Say = print) -> dict[str, Any]:
    """Measure, and return the result document."""
    lags = asyncio.run(_measure(size, say))
    details = {"lags": [_document(lag) for lag in lags]}
    return document(f"{size.runs:,} followed runs", rows(size, lags), details, size)


def rows(size: Followed, lags: list[Lag]) -> list[Row]:
    """Lay out the figures."""
    found = []
    for name, lag in zip(("few", "all"), lags, strict=True):
        of = f"{size.runs:,} runs, {lag.waited:,} waited for"
        found += [
            Row(f"{name}_woken_p50", f"{of}: from the record to its waiter, median", _at(lag.woken_ms, 0.5), "ms"),
            Row(f"{name}_woken_max", f"{of}: from the record to its waiter, worst", lag.woken_ms[-1], "ms"),
            Row(f"{name}_appended_p50", f"{of}: an append, median", _at(lag.appended_ms, 0.5), "ms"),
            Row(f"{name}_appended_max", f"{of}: an append, worst", lag.appended_ms[-1], "ms"),
            Row(f"{name}_looks", f"{of}: requests of the store", lag.looks, "req/s"),
        ]
    return found


class _Counting(LatencyStore):
    """A slow store that counts what it is asked."""

    asked = 0

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        self.asked += 1
        return super().get(key, byte_range, max_bytes=max_bytes)


async def _measure(size: Followed, say: Say) -> list[Lag]:
    base = DictStore()
    scripts = [fill(base, run_of(1, f"run-{number:05d}")) for number in range(size.runs)]
    store = _Counting(base, latency_s=size.latency_s)
    service = Service(Settings.read(root="memory://unused", insecure_open=True), store, Metrics())
    lags = []
    try:
        for waited in (min(size.waited, size.runs), size.runs):
            feeds = await _opened(service, scripts)
            say(f"{size.runs:,} runs are followed, {waited:,} of them waited for")
            waits = [_begin(feed) for feed in feeds[:waited]]
            await asyncio.sleep(size.settle_s)
            lags.append(await _lag(base, store, list(zip(scripts, feeds, strict=True))[:waited], size.rounds))
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits)
    finally:
        await service.stop()
    return lags


async def _opened(service: Service, scripts: list[Script]) -> list[RunFeed]:
    gate = asyncio.Semaphore(32)

    async def opened(run: str) -> RunFeed:
        async with gate:
            return await service.feeds.open(run)

    return await asyncio.gather(*(opened(script.run) for script in scripts))


def _begin(feed: RunFeed) -> asyncio.Task[bool]:
    """Wait for what does not come."""
    return asyncio.get_running_loop().create_task(feed.wait(lambda state: False, 1e6))


async def _lag(base: DictStore, store: _Counting, waited: list[tuple[Script, RunFeed]], rounds: int) -> Lag:
    woken: list[float] = []
    appended: list[float] = []
    asked, began = store.asked, time.perf_counter()
    step = max(1, len(waited) // rounds)
    for number in range(rounds):
        script, feed = waited[number * step % len(waited)]
        versions = len(script.state.versions)
        wait = asyncio.create_task(feed.wait(lambda state, versions=versions: len(state.versions) > versions, 1e6))
        await asyncio.sleep(0.1 * (number % 5 + 1) / 3)  # at any moment between two looks
        record = script.commit(layout=LAYOUT.id).records[-1]
        began_at = time.perf_counter()
        store_record(base, record)
        await wait
        woken.append((time.perf_counter() - began_at) * 1e3)
        record = script.commit(layout=LAYOUT.id).records[-1]
        store_objects(base, record)
        began_at = time.perf_counter()
        await feed.append(record.seal())
        appended.append((time.perf_counter() - began_at) * 1e3)
    looks = (store.asked - asked) / (time.perf_counter() - began)
    return Lag(len(waited), tuple(sorted(woken)), tuple(sorted(appended)), looks)


def _document(lag: Lag) -> dict[str, Any]:
    return {
        "waited": lag.waited,
        "woken_ms": [round(value, 1) for value in lag.woken_ms],
        "appended_ms": [round(value, 1) for value in lag.appended_ms],
        "looks_per_s": round(lag.looks, 1),
    }


def _at(values: tuple[float, ...], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]
