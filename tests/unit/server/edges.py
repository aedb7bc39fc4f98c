"""A small app behind the service's edges, to test them by themselves: it says what reached it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from pulse_registry.client.problems import problem_of
from pulse_registry.errors import PulseError
from pulse_server.auth.access import Guard, Requirement
from pulse_server.errors import Refused
from pulse_server.settings import Settings
from pulse_server.telemetry import logs, metrics
from pulse_server.tokens import TokenSet, new_token
from pulse_server.transport import limits

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.moment = NOW

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return self.moment


def one_token(scope: str = "admin", runs: tuple[str, ...] = ("*",), name: str = "tester") -> tuple[str, TokenSet]:
    """Return a token and the set that holds it alone."""
    token, entry = new_token(name, scope, runs, now=NOW)
    return token, TokenSet(tokens=(entry,))


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def small_app(settings: Settings, clock: Clock | None = None) -> FastAPI:
    """Return an app whose routes echo the body; ``app.state.seen`` holds the bodies that reached them."""
    clock = clock or Clock()
    app = FastAPI()
    app.state.guard = Guard(settings, now=clock.now, monotonic=clock.monotonic)
    app.state.seen = []
    router = APIRouter()

    @app.exception_handler(PulseError)
    def on_error(request: Request, error: PulseError) -> Response:
        if isinstance(error, Refused):
            return JSONResponse({"type": error.problem_type}, error.status.value, dict(error.headers))
        kind, status = problem_of(error)
        return JSONResponse({"type": kind}, status.value)

    @router.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/v1/runs/{run}/broken")
    async def broken(run: str) -> None:
        raise RuntimeError(f"a defect for {run}")

    @router.put("/v1/runs/{run}/objects/{path:path}")
    async def put_object(run: str, path: str, request: Request) -> Response:
        Requirement("publish").check(request)
        pieces = [piece async for piece in request.stream()]
        app.state.seen.append(b"".join(pieces))
        return Response(status_code=201)

    @router.get("/v1/runs/{run}/events")
    @router.get("/v1/runs/{run}")
    async def read(run: str, request: Request) -> dict[str, str]:
        return {"name": Requirement("read").check(request).name}

    @router.post("/v1/runs/{run}/log")
    async def publish(run: str, request: Request) -> Response:
        Requirement("publish").check(request)
        app.state.seen.append(await request.body())
        return Response(status_code=201)

    app.include_router(router)
    limits.install(app, settings, clock=clock.monotonic)
    metrics.install(app)
    logs.install(app, settings)
    return app


def client_of(app: FastAPI, **more: Any) -> httpx.AsyncClient:
    """Return a client that calls the app in this process."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://service", **more
    )
