"""Errors as problem documents (RFC 9457, application/problem+json): one table says which status each gets."""

from __future__ import annotations

import logging
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from pulse_registry.errors import (
    AlreadyExists,
    Conflict,
    CorruptObject,
    InvalidArgument,
    NotFound,
    PulseError,
    StoreUnavailable,
    UnsupportedFormat,
)
from pulse_server.bodies import Problem

STATUS: dict[type[PulseError], HTTPStatus] = {
    NotFound: HTTPStatus.NOT_FOUND,
    InvalidArgument: HTTPStatus.BAD_REQUEST,
    AlreadyExists: HTTPStatus.CONFLICT,
    Conflict: HTTPStatus.CONFLICT,
    UnsupportedFormat: HTTPStatus.NOT_IMPLEMENTED,
    CorruptObject: HTTPStatus.BAD_GATEWAY,
    StoreUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    PulseError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""The nearest class in an error's ancestry decides; PulseError catches what has no row of its own."""

logger = logging.getLogger(__name__)


def install_problems(app: FastAPI) -> None:
    """Make every error of ``app`` a problem document."""

    @app.exception_handler(PulseError)
    def on_pulse_error(request: Request, error: PulseError) -> Response:
        status = status_of(error)
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            # The message may name buckets and endpoints: that is for the operator's log, not for any caller.
            logger.error("%s %s: %s", request.method, request.url.path, error, exc_info=error)
            return problem(request, status, type(error).__name__, f"{status.description or status.phrase}.")
        return problem(request, status, type(error).__name__, str(error))

    @app.exception_handler(RequestValidationError)
    def on_invalid_request(request: Request, error: RequestValidationError) -> Response:
        detail = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return problem(request, HTTPStatus.UNPROCESSABLE_ENTITY, "InvalidRequest", detail)

    @app.exception_handler(HTTPException)
    def on_http_error(request: Request, error: HTTPException) -> Response:
        answer = problem(request, HTTPStatus(error.status_code), "HttpError", str(error.detail))
        answer.headers.update(error.headers or {})
        return answer


def status_of(error: PulseError) -> HTTPStatus:
    """Return the status that the table gives to ``error``."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def problem(request: Request, status: HTTPStatus, kind: str, detail: str) -> Response:
    """Return a problem document; ``kind`` becomes its type, as a stable URN."""
    body = Problem(
        type=f"urn:pulse-registry:problem:{kind}",
        title=status.phrase,
        status=status.value,
        detail=detail,
        instance=request.url.path,
    )
    return Response(body.canonical(), status.value, media_type="application/problem+json")
