"""Health: whether the process answers, whether its store does, and its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import Request
from fastapi.responses import Response

from pulse_registry.errors import StoreUnavailable
from pulse_schemas.api import Health, Ready
from pulse_server.routes.operations import Operation, Operations, Says
from pulse_server.telemetry.probe import StoreProbe
from pulse_server.transport.answers import Rendered

if TYPE_CHECKING:
    from pulse_server.service import Service

OPERATIONS: Final = Operations("health")


@OPERATIONS.add(
    Operation("GET", "/healthz", "none", "Tell that the process answers", {200: Says("It does.", Health())})
)
async def show_health(request: Request, service: Service) -> Response:
    """Tell that the process answers; asks nothing of the store."""
    return Rendered.of(Health())


@OPERATIONS.add(
    Operation(
        "GET",
        "/readyz",
        "none",
        "Tell whether the store answers",
        {200: Says("It does.", Ready(store_age_s=0.7))},
        refuses={503: "The store has not answered of late."},
    )
)
async def show_ready(request: Request, service: Service) -> Response:
    """Tell whether the store has answered of late."""
    probe: StoreProbe = request.app.state.probe
    if not probe.ready or service.stopping:
        raise StoreUnavailable(f"not ready: the store last answered {probe.age_s:.1f} s ago: {probe.problem}")
    return Rendered.of(Ready(store_age_s=round(probe.age_s, 3)))


@OPERATIONS.add(
    Operation(
        "GET",
        "/metrics",
        "admin",
        "Show metrics",
        {200: Says("All metrics, for Prometheus.", "pulse_feeds 3.0", "text/plain")},
        "Needs no token where the settings say so (`open_metrics`).",
        opened_by="open_metrics",
    )
)
async def show_metrics(request: Request, service: Service) -> Response:
    """Show metrics."""
    content, media_type = service.metrics.render()
    return Response(content, headers={"content-type": media_type})
