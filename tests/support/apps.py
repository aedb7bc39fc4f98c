"""The service in this process on a real socket, over a store that the test holds in its hands; and runs to serve."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import uvicorn
from fastapi import FastAPI

from pulse_registry.format import keys
from pulse_registry.log import RunState, rules
from pulse_registry.store import PrefixStore, Store
from pulse_schemas import AttachRecord, CommitRecord, Layout, Record, Tensor
from pulse_server import Settings, create_app
from pulse_server.runs.feed import RunFeed
from pulse_server.runs.feeds import Feeds
from pulse_server.runs.log_feed import Pace
from pulse_server.scheduling.looks import Looks
from pulse_server.service import Service
from pulse_server.transport.answer_cache import Kept
from tests.support.records import RUN, DictStore, Script
from tests.support.waiting import HANG_S, NEVER_S

T = TypeVar("T")
LAYOUT = Layout(tensors=(Tensor(name="w", dtype="BF16", shape=(10, 10)),))


def app_over(store: Store, *, clock: Callable[[], float] = time.monotonic, **settings: object) -> FastAPI:
    """Return a service over a store; it looks at the log often, lets callers wait for long, and needs no token."""
    quick = {"poll_seconds": 0.02, "report_seconds": 0.05, "wait_max_s": NEVER_S, "rate_per_s": 0}
    free = {"insecure_open": True, "access_log": False}
    return create_app(Settings.read(root="memory://unused", **{**quick, **free, **settings}), store, clock=clock)


class _Known:
    """Reads a log of which all is known; see `LogReader`."""

    def __init__(self, state: RunState) -> None:
        self.run, self.state = state.run, state

    def refresh(self) -> RunState:
        return self.state


class _NoLooks(Looks):
    """Looks at nothing."""

    def after(self, seconds: float, one: object) -> None:
        """Leave it."""


def app_of(state: RunState) -> FastAPI:
    """Return a service that knows one run, however long, by its state alone, and keeps no answer."""
    app, reader = app_over(DictStore(), poll_seconds=600), cast(Any, _Known(state))
    service: Service = app.state.service
    service.pages, service.routes = Kept(0), Kept(0)
    service.feeds = Feeds(
        lambda run: RunFeed(reader, reader, service.checkers, Pace(600.0, 600.0), looks=_NoLooks()),
        max_feeds=1,
        missing_s=0.0,
    )
    return app


def run_of(versions: int, run: str = RUN) -> Script:
    """Return a script with one epoch and so many commits, of a layout that can be stored."""
    script = Script(run).epoch()
    for _ in range(versions):
        script.commit(layout=LAYOUT.id)
    return script


def store_objects(store: Store, record: Record) -> None:
    """Store all that a record of a run names; ``store`` is the root."""
    below = PrefixStore(store, record.run)
    if isinstance(record, CommitRecord | AttachRecord):
        for item in rules.objects_of(record):
            below.put(item.key, b"x" * item.size)
    if isinstance(record, CommitRecord):
        below.put(keys.layout_key(LAYOUT.id), LAYOUT.canonical())


def store_record(store: Store, record: Record) -> None:
    """Append a record as a trainer with the bucket's keys does."""
    store_objects(store, record)
    PrefixStore(store, record.run).put(keys.record_key(record.seq), record.seal(), if_absent=True)


def fill(store: Store, script: Script) -> Script:
    """Store a whole run, and return it."""
    for record in script.records:
        store_record(store, record)
    return script


@dataclass(frozen=True, slots=True)
class Running:
    """A service that runs."""

    url: str
    app: FastAPI
    loop: asyncio.AbstractEventLoop

    @property
    def service(self) -> Service:
        service: Service = self.app.state.service
        return service

    def inside(self, function: Callable[[], T]) -> T:
        """Call a function in the service's event loop."""

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(HANG_S)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self.ready.set()


@contextmanager
def running(app: FastAPI) -> Iterator[Running]:
    """Serve an app on a free port, in a thread; stop it as `pulse serve` does."""
    server = _Server(uvicorn.Config(app, port=0, log_config=None, ws="none", timeout_graceful_shutdown=int(HANG_S)))
    thread = threading.Thread(target=server.run, name="uvicorn")
    thread.start()
    try:
        if not server.ready.wait(HANG_S) or server.loop is None:
            raise RuntimeError("the service did not start")
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Running(f"http://127.0.0.1:{port}", app, server.loop)
        server.loop.call_soon_threadsafe(app.state.service.stop_waiting)
    finally:
        server.should_exit = True
        thread.join(HANG_S)
