"""Runs of a root: what a list of them costs, and how old what a service knows of them grows.

Of 1,000 followed runs somebody waits for each; the store takes 30 ms for a request, as a bucket does.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from benchmarks.growth.curve import Curve, curve_of, processor_ms
from pulse_registry.log.runs import list_runs
from pulse_registry.store import FileStore, Store
from pulse_registry.store.s3.listing import Listing
from pulse_registry.store.wrappers.wrapper import WrapperStore
from pulse_registry.testing import LatencyStore
from pulse_server.runs.feed import RunFeed
from pulse_server.service import Service
from pulse_server.settings import Settings
from pulse_server.telemetry.metrics import Metrics
from tests.support.apps import fill, run_of
from tests.support.records import DictStore

LATENCY_S: Final = 0.03
_KEYS: Final = ("head", "layouts/0.json", "log/000000000000.json", "log/000000000001.json", "objects/patch/0")
"""Of each run: listing them all would be a request for each 200 runs."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a service knew of runs that it follows, over some seconds.

    Attributes:
        age_s: the greatest age of what was known of any run that somebody waited for, at most moments: of ten, nine.
        cores: processor time, of all that the process did, by the time that passed.
    """

    age_s: float
    cores: float


def curves(quick: bool) -> list[Curve]:
    """Measure."""
    sizes = (3, 30) if quick else (10, 100, 1_000)
    known = {size: asyncio.run(known_of(size, 0.3 if quick else 10.0)) for size in sizes}
    return [
        curve_of(
            "runs.listing_folder", "list the runs of a folder", "runs", "ms", _each(sizes, folder_ms), "last", 50.0
        ),
        curve_of(
            "runs.listing_bucket", "list the runs of a bucket", "runs", "LISTs", _each(sizes, bucket_lists), "last", 2.0
        ),
        curve_of(
            "runs.known_age",
            "age of what is known of followed runs, each waited for, 30 ms a request",
            "runs",
            "s",
            ((size, found.age_s) for size, found in known.items()),
            "last",
            1.0,
        ),
        curve_of(
            "runs.known_cores",
            "processor time of following runs, each waited for",
            "runs",
            "cores",
            ((size, found.cores) for size, found in known.items()),
            "last",
            0.25,
        ),
    ]


def folder_ms(runs: int) -> float:
    """Return the processor time of listing so many runs of a folder, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        for run in range(runs):
            for key in _KEYS:
                path = Path(folder, f"run-{run:05d}", key)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
        store = FileStore(folder)
        return processor_ms(lambda: _count(store, runs))


def bucket_lists(runs: int) -> int:
    """Return how many LISTs it takes to list so many runs of a bucket, and whatever else lies beside them."""
    client = Pages([f"root/run-{run:05d}/{key}" for run in range(runs) for key in _KEYS] + ["root/READ ME", "other/x"])
    _count(_Bucket(client), runs)
    return client.lists


async def known_of(runs: int, seconds: float) -> Known:
    """Follow so many runs, somebody waiting for each, and return how old what is known of them grew."""
    base = DictStore()
    names = [fill(base, run_of(1, f"run-{run:05d}")).run for run in range(runs)]
    settings = Settings.read(root="memory://unused", insecure_open=True)
    service = Service(settings, LatencyStore(base, latency_s=LATENCY_S), Metrics())
    try:
        feeds = await _opened(service, names)
        waits = [asyncio.create_task(feed.wait(lambda state: False, 1e6)) for feed in feeds]
        await asyncio.sleep(seconds / 5)
        began, spent, ages = time.perf_counter(), time.process_time(), []
        while (passed := time.perf_counter() - began) < seconds:
            await asyncio.sleep(0.1)
            ages.append(max(feed.age_s for feed in feeds))
        cores = (time.process_time() - spent) / passed
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
    finally:
        await service.stop()
    return Known(sorted(ages)[int(0.9 * len(ages))], cores)


async def _opened(service: Service, runs: Iterable[str]) -> list[RunFeed]:
    gate = asyncio.Semaphore(32)

    async def opened(run: str) -> RunFeed:
        async with gate:
            return await service.feeds.open(run)

    return await asyncio.gather(*map(opened, runs))


def _each(sizes: Iterable[int], cost: Callable[[int], float]) -> Iterator[tuple[int, float]]:
    return ((size, cost(size)) for size in sizes)


def _count(store: Store, runs: int) -> None:
    found = sum(1 for _ in list_runs(store))
    if found != runs:
        raise ValueError(f"{found} runs were listed of {runs}")


class Pages:
    """What is asked of a bucket to list it: pages of 1,000 keys and folders, in the order of keys.

    Attributes:
        lists: how many were asked for.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        """Hold keys."""
        self._keys, self.lists = sorted(keys), 0

    def list_objects_v2(self, *, Prefix: str, MaxKeys: int, Delimiter: str = "", **more: Any) -> dict[str, Any]:  # noqa: N803
        """Answer as S3 does."""
        self.lists += 1

        def entry(key: str) -> str:
            name, slash, _ = key[len(Prefix) :].partition(Delimiter) if Delimiter else (key[len(Prefix) :], "", "")
            return Prefix + name + slash

        below = (key for key in self._keys if key.startswith(Prefix))
        entries = [found for found, _ in groupby(map(entry, below))]
        at = bisect_right(entries, more.get("ContinuationToken", more.get("StartAfter", "")))
        page = entries[at : at + MaxKeys]
        return {
            "Contents": [{"Key": found} for found in page if not found.endswith("/")],
            "CommonPrefixes": [{"Prefix": found} for found in page if found.endswith("/")],
            "IsTruncated": at + MaxKeys < len(entries),
            "NextContinuationToken": page[-1] if page else None,
        }


class _Bucket(WrapperStore):
    """Lists the folders of a bucket as S3Store does, by a client of pages."""

    def __init__(self, client: Pages) -> None:
        super().__init__(DictStore())
        self._listing = Listing(client, "bucket", self.url)

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the folders behind a prefix."""
        top = "root/"
        return (folder.removeprefix(top) for folder in self._listing.folders(top + prefix, top + (after or "")))
