"""End to end under slow links: from push's call to the worker's weights changed, against full sync and XOR + zstd-1.

Trainer, worker and a real S3 server on one machine, with a link between them and it (see ``link``); the worker pulls
as soon as the push returns. The others move as little as they can through the same store client: one object a step,
and a small one that names it, which a worker reads first; no log, no hash, no check. Nobody overlaps steps.

What the default takes is told in parts, too: the same steps through memory are its own time, and the requests that it
made, made again by themselves, are the network's and the server's.
"""

from __future__ import annotations

import json
import statistics
import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from benchmarks.common_format import XorZstd
from benchmarks.link import Link, over
from benchmarks.push_pull import CODERS
from benchmarks.requests import Request, RequestStore, make_again
from benchmarks.results import Row, machine, versions
from benchmarks.states import Cells, Live, States, visits
from benchmarks.timing import seconds
from pulse_registry.format.patch_coding import CoderChoice
from pulse_registry.options import Options
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.store import MemoryStore, RetryStore, Store, open_store
from tests.support.servers import S3Bucket, S3Server

LINKS = (Link("1 Gbit/s", 1000, 0.0), Link("200 Mbit/s, 50 ms", 200, 25.0))
"""The second: 50 ms for a round trip."""
TITLE = "End to end under slow links"
FULL, COMMON = "full sync", "XOR + zstd-1"
OWN, BARE = "auto, through memory", "auto, its requests alone"
REQUESTS_LIMIT = 1.5
"""What push and pull may take beyond their own time, of the time of their requests alone."""


class Sync(Protocol):
    """One way to bring a trainer's state to a worker."""

    name: str

    def send(self, step: int, live: Live) -> int:
        """Publish the trainer's state; return the bytes that this stored."""

    def receive(self) -> None:
        """Bring the worker to it."""

    def worker(self) -> Sequence[Cells]:
        """Return the worker's cells, in the order of the states' tensors."""


class ByRegistry:
    """The library: a push and a pull into live weights."""

    def __init__(
        self, name: str, coder: CoderChoice, states: States, sending: Store, receiving: Store, stack: ExitStack
    ) -> None:
        self.name = name
        options = PushOptions(coder=coder, dtype="keep", keyframe_share=1e9)
        self._trainer = stack.enter_context(Registry(sending, "bench", Options(push=options)))
        self._worker = stack.enter_context(Registry(receiving, "bench"))
        self._weights = Live(states)
        self._model = self._weights.model()

    def send(self, step: int, live: Live) -> int:
        """Push."""
        return self._trainer.push(step, live.model()).nbytes

    def receive(self) -> None:
        """Pull."""
        self._worker.pull(into=self._model)

    def worker(self) -> Sequence[Cells]:
        """Return the cells that were pulled into."""
        return self._weights.cells


class Pointed:
    """One object a state, and one beside them that says which is the newest and where its parts end."""

    def __init__(self, url: str) -> None:
        self._store: Store = RetryStore(open_store(url))

    def put(self, key: str, parts: Sequence[bytes | memoryview]) -> int:
        """Store a state, then the pointer to it; return the bytes of both."""
        sizes = [len(part) for part in parts]
        pointer = json.dumps({"key": key, "sizes": sizes}).encode()
        self._store.put(key, parts)
        self._store.put("latest", pointer)
        return sum(sizes) + len(pointer)

    def get(self) -> list[memoryview]:
        """Return the parts of the newest state."""
        pointer = json.loads(self._store.get("latest"))
        data, ends = (
            memoryview(self._store.get(pointer["key"], max_bytes=sys.maxsize)),
            np.cumsum(pointer["sizes"]).tolist(),
        )
        return [data[end - size : end] for size, end in zip(pointer["sizes"], ends, strict=True)]


class ByFullSync:
    """All cells as one object, and a copy of them into the weights."""

    name = FULL

    def __init__(self, states: States, url: str) -> None:
        self._place = Pointed(url)
        self._weights = Live(states)

    def send(self, step: int, live: Live) -> int:
        """Put the cells."""
        return self._place.put(f"full-{step}", [cells.view(np.uint8).data for cells in live.cells])

    def receive(self) -> None:
        """Get them."""
        for cells, part in zip(self._weights.cells, self._place.get(), strict=True):
            cells[:] = np.frombuffer(part, cells.dtype)

    def worker(self) -> Sequence[Cells]:
        """Return the weights' cells."""
        return self._weights.cells


class ByXor:
    """The field's common format: one object of all tensors' frames."""

    name = COMMON

    def __init__(self, states: States, url: str, threads: int, stack: ExitStack) -> None:
        self._place = Pointed(url)
        self._format = XorZstd(threads)
        stack.callback(self._format.close)
        self._before, self._weights = Live(states), Live(states)

    def send(self, step: int, live: Live) -> int:
        """Encode against the state before and put the frames."""
        return self._place.put(f"xor-{step}", self._format.encode(self._before.cells, live.cells))

    def receive(self) -> None:
        """Get the frames and decode them in place."""
        self._format.decode([bytes(part) for part in self._place.get()], self._weights.cells)

    def worker(self) -> Sequence[Cells]:
        """Return the weights' cells."""
        return self._weights.cells

    def followed(self, live: Live) -> None:
        """Keep the state that was sent, as a trainer that can afford it would: not timed."""
        self._before.go(live.at)


@dataclass(slots=True)
class Found:
    """Seconds and bytes of each step, and the seconds of the first sync, which moves the whole state."""

    first_s: float = 0.0
    seconds: list[float] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)


def measure_link(link: Link, server: S3Server, states: States, threads: int, repeats: int) -> dict[str, Found]:
    """Bring ``repeats`` steps to a worker in each way, in turn, through one link; credentials are in the environment.

    Raises:
        AssertionError: a worker's cells are not the trainer's.
    """
    bucket = server.new_bucket()
    with ExitStack() as stack:
        endpoint = stack.enter_context(over(server.endpoint, link))

        def url(name: str) -> str:
            return S3Bucket(S3Server(server.name, endpoint), bucket.name).url(f"{name}-{uuid.uuid4().hex[:8]}")

        def made(coder: CoderChoice, place: str) -> ByRegistry:
            sending, receiving = requests[coder] = RequestStore(open_store(place)), RequestStore(open_store(place))
            return ByRegistry(coder, coder, states, sending, receiving, stack)

        requests: dict[str, tuple[RequestStore, RequestStore]] = {}
        live, memory = Live(states), MemoryStore(uuid.uuid4().hex)
        common, places = ByXor(states, url("xor"), threads, stack), {coder: url(coder) for coder in CODERS}
        ours = [made(coder, place) for coder, place in places.items()]
        own = ByRegistry(OWN, "auto", states, memory, memory, stack)
        ways: list[Sync] = [*ours, own, common, ByFullSync(states, url("full"))]
        found = {way.name: Found() for way in ways} | {BARE: Found()}
        bare = RetryStore(open_store(places["auto"]))
        for way in ways:
            found[way.name].first_s = seconds(lambda: _bring(way, 0, live, Found()))  # noqa: B023
        for one in (one for both in requests.values() for one in both):
            one.taken()  # the whole state
        for step, state in enumerate(visits(len(states.steps), repeats)[:repeats], 1):
            live.go(state)
            for way in ways:
                mine = found[way.name]
                mine.seconds.append(seconds(lambda: _bring(way, step, live, mine)))  # noqa: B023
                _check(way, live)
                asked = [one.taken() for one in requests.get(way.name, ())]
                if way.name == "auto":
                    found[BARE].seconds.append(seconds(lambda: _ask_again(bare, step, asked)))  # noqa: B023
                    found[BARE].nbytes.append(mine.nbytes[-1])  # once more, elsewhere
            common.followed(live)
    bucket.remove()
    return found


def link_rows(link: Link, found: dict[str, Found]) -> list[Row]:
    """Return seconds and bytes of each way, and the library's default against the others."""

    def median(name: str) -> float:
        return statistics.median(found[name].seconds)

    rows = []
    for name, mine in found.items():
        what = f"{link.name}: {name}, push to weights changed"
        rows.append(Row(f"{link.name}.{name}", what, median(name), "s"))
        rows.append(
            Row(f"{link.name}.{name}.mb", f"{link.name}: {name}, stored", statistics.median(mine.nbytes) / 1e6, "MB")
        )
    for name in (COMMON, FULL):
        what = f"{link.name}: auto, the default, against {name}"
        rows.append(Row(f"{link.name}.against.{name}", what, median("auto") / median(name), "x"))
    what = f"{link.name}: auto, less its own time, against its requests alone"
    beyond = (median("auto") - median(OWN)) / median(BARE)
    rows.append(Row(f"{link.name}.against.{BARE}", what, beyond, "x", "at most", REQUESTS_LIMIT))
    return rows


def links_document(
    states: States,
    links: Sequence[Link],
    server: S3Server,
    threads: int,
    repeats: int,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure all links; return the result document."""
    rows: list[Row] = []
    details = []
    for link in links:
        say(f"{link.name}")
        found = measure_link(link, server, states, threads, repeats)
        rows += link_rows(link, found)
        ways = {
            name: {
                "first_s": round(mine.first_s, 4),
                "seconds": [round(value, 4) for value in mine.seconds],
                "bytes": mine.nbytes,
            }
            for name, mine in found.items()
        }
        details.append({"name": link.name, "mbit": link.mbit, "delay_ms": link.delay_ms, "ways": ways})
    return {
        "kind": "links",
        "title": f"{TITLE}: {states.title}",
        "machine": machine(),
        "versions": versions(),
        "seed": states.seed,
        "settings": {"store": server.name, "threads": threads, "repeats": repeats, "cells": states.cells},
        "rows": [row.document() for row in rows],
        "links": details,
    }


def _bring(way: Sync, step: int, live: Live, found: Found) -> None:
    found.nbytes.append(way.send(step, live))
    way.receive()


def _ask_again(store: Store, step: int, asked: Sequence[Sequence[Request]]) -> None:
    """Make the requests of a push again, then those of a pull; nothing is put that another one reads."""
    for requests in asked:
        make_again(store, requests, f"again-{step}/")


def _check(way: Sync, live: Live) -> None:
    if not all(np.array_equal(a, b) for a, b in zip(way.worker(), live.cells, strict=True)):
        raise AssertionError(f"{way.name}: the worker's cells are not the trainer's")
