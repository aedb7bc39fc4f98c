"""The operations of the API, a module for each noun."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter

from pulse_server.routes import (
    bases,
    copies,
    events,
    fleet,
    health,
    layers,
    leases,
    log,
    objects,
    outer,
    route,
    runs,
    uploads,
    versions,
    workers,
)

ROUTERS: Final[tuple[APIRouter, ...]] = (
    # The addresses that are asked for most come first: a request is tried on one after the other.
    versions.router,
    route.router,
    log.router,
    objects.router,
    bases.router,
    workers.router,
    leases.router,
    outer.router,
    events.router,
    fleet.router,
    uploads.router,
    copies.router,
    runs.router,
    layers.router,
    health.router,
)
