"""Health: whether the process answers, whether its store does, and its metrics."""

from __future__ import annotations

from fastapi import Request, Security
from fastapi.responses import Response

from pulse_registry.errors import StoreUnavailable
from pulse_schemas.api import Health, Ready
from pulse_server.routes.dependencies import MetricsToken, TheService
from pulse_server.routes.operation import answer, operations, problem
from pulse_server.telemetry.probe import StoreProbe
from pulse_server.transport.answers import Rendered

router = operations("health")


@router.get(
    "/healthz",
    summary="Check that the process answers",
    response_model=Health,
    responses={200: answer("The process answers.", Health())},
)
async def show_health() -> Response:
    """Tell that the process answers; asks nothing of the store."""
    return Rendered.of(Health())


@router.get(
    "/readyz",
    summary="Check that the store answers",
    response_model=Ready,
    responses={
        200: answer("The store answers.", Ready(store_age_s=0.7)),
        503: problem("The store has not answered of late."),
    },
)
async def show_ready(request: Request, service: TheService) -> Response:
    """Tell whether the store has answered of late."""
    probe: StoreProbe = request.app.state.probe
    if not probe.ready or service.stopping:
        raise StoreUnavailable(f"not ready: the store last answered {probe.age_s:.1f} s ago: {probe.problem}")
    return Rendered.of(Ready(store_age_s=round(probe.age_s, 3)))


@router.get(
    "/metrics",
    summary="Show metrics",
    description=("Needs no token where the settings say so (`open_metrics`)."),
    response_class=Response,
    dependencies=[Security(MetricsToken("admin"))],
    responses={200: answer("All metrics, for Prometheus.", "pulse_feeds 3.0", "text/plain")},
)
async def show_metrics(service: TheService) -> Response:
    """Show metrics."""
    content, media_type = await service.render(service.metrics.render)  # of hundreds of runs it takes long
    return Response(content, headers={"content-type": media_type})
