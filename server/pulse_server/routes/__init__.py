"""The operations of the API, a module for each noun."""

from __future__ import annotations

from typing import Final

from pulse_server.routes import events, health, leases, log, objects, route, runs, uploads, versions, workers
from pulse_server.routes.operations import Operations

MODULES: Final[tuple[Operations, ...]] = (
    # The addresses that are asked for most come first: a request is tried on one after the other.
    versions.OPERATIONS,
    log.OPERATIONS,
    route.OPERATIONS,
    objects.OPERATIONS,
    workers.OPERATIONS,
    leases.OPERATIONS,
    events.OPERATIONS,
    uploads.OPERATIONS,
    runs.OPERATIONS,
    health.OPERATIONS,
)
