"""The application: a root's runs and their versions as JSON.

A request opens its run afresh: what is true is in the bucket, so that any number of replicas answer alike.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, FastAPI, Path, Request

import pulse_registry
from pulse_schemas.base import RunName
from pulse_server.bodies import Health, VersionBody, VersionList
from pulse_server.problems import install_problems

Run = Annotated[RunName, Path(description="the run's name")]
Number = Annotated[str, Path(pattern=r"^(latest|0|[1-9][0-9]{0,17})$", description="a version, or `latest`")]

router = APIRouter()


@router.get("/healthz")
def healthz() -> Health:
    """Say that the process answers; does not touch the store."""
    return Health()


@router.get("/v1/runs/{run}/versions")
def list_versions(run: Run, request: Request) -> VersionList:
    """List the versions of a run, oldest first."""
    registry = _open(request, run)
    return VersionList(run=run, versions=tuple(VersionBody.of(version) for version in registry.versions()))


@router.get("/v1/runs/{run}/versions/{number}")
def show_version(run: Run, number: Number, request: Request) -> VersionBody:
    """Show one version, or the newest."""
    registry = _open(request, run)
    return VersionBody.of(registry.version("latest" if number == "latest" else int(number)))


def create_app(root: str) -> FastAPI:
    """Return the service over the runs under ``root``, a URL or path that `pulse_registry.open` takes.

    Nothing is opened before the first request.
    """
    app = FastAPI(title="Pulse Registry", version="1", redoc_url=None)
    app.state.root = root
    app.include_router(router)
    install_problems(app)
    return app


def _open(request: Request, run: str) -> pulse_registry.Registry:
    root: str = request.app.state.root
    # The service decodes nothing: no kernels are compiled for it.
    return pulse_registry.open(root, run=run, create=False, backend="reference")
