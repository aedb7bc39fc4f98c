"""The real service on a real socket, in a thread, over a store in memory that a test pushes into."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import httpx
import numpy as np
import uvicorn

import pulse_registry
from pulse_registry.demo.bucket import free_ports
from pulse_registry.log import LogReader, LogWriter, random_id, utc_now
from pulse_registry.store import PrefixStore, open_store
from pulse_server import create_app
from pulse_server.settings import Settings
from pulse_server.tokens import TokenSet, new_token
from tests.support.waiting import HANG_S, until

CELLS = 4096


class Below:
    """A proxy that serves an app below a path: it takes the prefix off."""

    def __init__(self, app: Any, prefix: str) -> None:
        self.app, self.prefix = app, prefix

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            inside = path.startswith(self.prefix + "/")
            below = path.removeprefix(self.prefix) if inside else "/outside-the-prefix"
            scope = {**scope, "path": below, "raw_path": below.encode()}
        await self.app(scope, receive, send)


class Site:
    """A service that can be stopped and started again at the same address."""

    def __init__(self, *, is_open: bool = True, prefix: str = "", **settings: Any) -> None:
        self.root = f"memory://page-{uuid.uuid4().hex[:12]}"
        self.prefix = prefix
        self.port = free_ports(1)[0]
        self.tokens: dict[str, str] = {}
        entries = []
        for name, runs in (("all", ("*",)), ("math-only", ("math-*",))):
            self.tokens[name], entry = new_token(name, "admin", runs, now=utc_now())
            entries.append(entry)
        access = {"insecure_open": True} if is_open else {"tokens": TokenSet(tokens=tuple(entries))}
        self.settings = Settings(
            root=self.root, poll_seconds=0.05, report_seconds=0.2, access_log=False, **access, **settings
        )
        self._weights: dict[str, Any] = {}
        self._server: uvicorn.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.prefix}/"

    def start(self) -> None:
        app = create_app(self.settings)
        self._app = app
        served: Any = Below(app, self.prefix) if self.prefix else app
        config = uvicorn.Config(served, host="127.0.0.1", port=self.port, log_config=None, lifespan="on")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="page-site")
        self._thread.start()
        server, thread = self._server, self._thread
        until(lambda: server.started or not thread.is_alive())
        if not server.started:
            raise RuntimeError("the service did not start")

    def stop(self) -> None:
        if self._server is None:
            return
        self._app.state.service.stop_waiting()
        self._server.should_exit = True
        self._thread.join(HANG_S)
        if self._thread.is_alive():
            raise RuntimeError("the service did not stop")
        self._server = None

    def push(self, run: str, step: int, changed: int = 40, **metadata: Any) -> None:
        """Push a version that differs from the one before in ``changed`` cells."""
        weights = self._weights.setdefault(run, {"w": np.zeros((64, CELLS // 64), np.float32)})
        weights["w"].reshape(-1)[:changed] += 1.0
        with pulse_registry.open(
            self.root, run=run, compute=pulse_registry.ComputeOptions(backend="reference")
        ) as registry:
            registry.push(step, weights, metadata=metadata)

    def begin(self, run: str) -> None:
        """Begin a run that has no version."""
        store = PrefixStore(open_store(self.root), run)
        LogWriter(store, run, LogReader(store, run), utc_now, random_id, "a test").begin()

    def digest(self, run: str) -> str:
        with pulse_registry.open(
            self.root, run=run, create=False, compute=pulse_registry.ComputeOptions(backend="reference")
        ) as registry:
            return registry.version("latest").digest

    def report(self, run: str, worker: str, version: int, digest: str | None = None, **phases: float) -> None:
        """Report as a worker does."""
        body = {"version": version, "digest": digest or self.digest(run), "phases": phases, "nbytes": 512}
        headers = {} if self.settings.insecure_open else {"Authorization": f"Bearer {self.tokens['all']}"}
        answer = httpx.put(f"{self.url}v1/runs/{run}/workers/{worker}", json=body, headers=headers, timeout=HANG_S)
        answer.raise_for_status()

    def forget(self, run: str, worker: str) -> None:
        """Say what a worker says when it is closed; the service needs no token."""
        httpx.delete(f"{self.url}v1/runs/{run}/workers/{worker}", timeout=HANG_S).raise_for_status()
