"""The application: the service over one root, its routes, its limits and its page."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from pulse_registry.roots import NearestStore, roots_of
from pulse_registry.store import Store, open_store
from pulse_server.auth.access import Guard
from pulse_server.page import static
from pulse_server.routes import ROUTERS
from pulse_server.routes.operation import admit
from pulse_server.service import Service
from pulse_server.settings import Settings
from pulse_server.telemetry import logs, metrics
from pulse_server.telemetry.probe import StoreProbe
from pulse_server.transport import limits
from pulse_server.transport.problems import PROBLEM_SCHEMA, install_problems


def create_app(
    settings: Settings, store: Store | None = None, *, clock: Callable[[], float] = time.monotonic
) -> FastAPI:
    """Return the service over the runs of a root. Nothing is asked of the store before the app starts.

    Args:
        settings: all that can be set.
        store: holds the runs; None opens ``settings.root``.
        clock: monotonic time in seconds, by which what is known grows old and callers are limited.

    Raises:
        InvalidArgument: the root's URL is not valid, or nobody could use the service.
        NotFound, StoreUnavailable: the tokens' file can't be read.
    """
    guard = Guard(settings, monotonic=clock)
    store = _opened(settings, clock) if store is None else store
    counts = metrics.Metrics()
    service = Service(settings, store, counts, clock=clock)
    probe = StoreProbe(store, every_s=settings.probe_seconds, limit_s=settings.ready_seconds, clock=clock)
    counts.store_age.set_function(lambda: probe.age_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        probe.start()
        await service.start()
        try:
            yield
        finally:
            await service.stop()
            probe.stop()

    app = _Application(
        title="Pulse Registry",
        version=version("pulse-registry"),
        description="Versions of model weights: find them, wait for them, route to them, commit them.",
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        separate_input_output_schemas=False,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.guard, app.state.service, app.state.probe, app.state.metrics = guard, service, probe, counts
    for router in ROUTERS:  # as they are: including them would make each route anew, slower to find
        app.router.routes.extend(router.routes)
    app.include_router(static.router)
    install_problems(app)
    limits.install(app, settings, clock=clock, admit=partial(admit, app.router.routes))
    metrics.install(app)
    logs.install(app, settings)
    return app


def _opened(settings: Settings, clock: Callable[[], float]) -> Store:
    stores = [open_store(root, answer_s=settings.store_answer_s) for root in roots_of(settings.root)]
    return stores[0] if len(stores) == 1 else NearestStore(stores, clock=clock)


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Return the API's description, as FastAPI makes it of the operations, with the problem document."""
        described = super().openapi()
        described["components"]["schemas"].setdefault("Problem", PROBLEM_SCHEMA)
        return described
