"""Errors as problem documents (RFC 9457, application/problem+json): the table is `pulse_registry.client.problems`."""

from __future__ import annotations

import errno
import logging
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from pulse_registry.client.problems import TYPE_PREFIX, problem_of
from pulse_registry.errors import PulseError, StoreUnavailable
from pulse_schemas.api import Problem
from pulse_server.errors import Refused, document, shown
from pulse_server.telemetry.crowds import Crowds
from pulse_server.transport.answers import content_digest

MEDIA_TYPE: Final = "application/problem+json"
PROBLEM_SCHEMA: Final = {
    **Problem.model_json_schema(mode="serialization"),
    "example": Problem(
        type=f"{TYPE_PREFIX}NotFound",
        title="Not Found",
        status=404,
        detail="run 'math-7b' has no version 43; the newest is 42",
        instance="/v1/runs/math-7b/versions/43",
    ).model_dump(mode="json"),
}
"""The schema of every problem document, for OpenAPI."""
_GENERAL: Final = {
    HTTPStatus.SERVICE_UNAVAILABLE: "the service's store can't be reached, or did not do it: try again",
    HTTPStatus.BAD_GATEWAY: "what the service's store holds is damaged, or not to be believed",
    HTTPStatus.NOT_IMPLEMENTED: "what the service's store holds was written by another release",
}
"""What a caller is told in place of an error's own words: what is wrong, and where."""
_MOST_FAULTS: Final = 4
_NOWHERE: Final = "there is nothing at this path: the API is below /v1/, and a client's URL ends before that"
logger = logging.getLogger(__name__)


def install_problems(app: FastAPI) -> None:
    """Make every error of ``app`` a problem document."""

    crowds = Crowds(logger)

    @app.exception_handler(PulseError)
    async def on_pulse_error(request: Request, error: PulseError) -> Response:
        return _problem_for(request, error, crowds)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> Response:
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        return _problem(request, TYPE_PREFIX + "InvalidRequest", status, _faults(error))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        name = "InvalidRequest" if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR else "PulseError"
        status = HTTPStatus(error.status_code)
        detail = _NOWHERE if status == HTTPStatus.NOT_FOUND else str(error.detail)
        return _problem(request, TYPE_PREFIX + name, status, detail, error.headers or {})

    @app.exception_handler(OSError)
    async def on_os_error(request: Request, error: OSError) -> Response:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise error  # a defect
        what = f"{request.method} {request.url.path}: {error}"
        crowds.tell("OSError", f"{what}; no file descriptor is left: raise ulimit -n, or run more replicas")
        status = HTTPStatus.SERVICE_UNAVAILABLE
        detail = "the service has no file descriptor left: try again"
        return _problem(request, TYPE_PREFIX + StoreUnavailable.__name__, status, detail, {"retry-after": "1"})

    @app.exception_handler(Exception)
    async def on_defect(request: Request, error: Exception) -> Response:
        # The server logs the traceback itself: this handler is the outermost edge.
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        return _problem(request, TYPE_PREFIX + "PulseError", status, _general(status))


def _faults(error: RequestValidationError) -> str:
    """Return in a few words which parameters are not as they must be."""
    told = []
    for fault in error.errors()[:_MOST_FAULTS]:
        given = f"{shown(fault['input'])}: " if isinstance(fault["input"], str) else ""
        told.append(f"{fault['loc'][-1]}: {given}{fault['msg']}")
    return "; ".join(told)


def _problem_for(request: Request, error: PulseError, crowds: Crowds) -> Response:
    """Return the problem document that an error becomes."""
    if isinstance(error, Refused):
        return _problem(request, error.problem_type, error.status, str(error), error.headers)
    problem_type, status = problem_of(error)
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return _problem(request, problem_type, status, str(error))
    # The message may name buckets and endpoints: that is for the operator's log, not for any caller.
    kind = type(error).__name__
    crowds.tell(kind, f"{request.method} {request.url.path}: {kind}: {error}")
    headers = {}
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        asked = error.retry_after_s if isinstance(error, StoreUnavailable) else None
        headers["retry-after"] = str(math.ceil(max(1.0, asked or 0.0)))
    return _problem(request, problem_type, status, _general(status), headers)


def _general(status: HTTPStatus) -> str:
    return f"{_GENERAL.get(status, 'the service has a defect')}; the service's log says more"


def _problem(
    request: Request, problem_type: str, status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None
) -> Response:
    content = document(problem_type, status, detail, request.url.path)
    return Response(
        content,
        status.value,
        media_type=MEDIA_TYPE,
        headers={**(headers or {}), "content-digest": content_digest(content)},
    )
