"""Problem documents (RFC 9457): one table from the error tree to problem types and statuses, and back.

The service writes what `problem_of` says and the client raises what `error_of` says: the same class on both ends.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from pulse_registry.errors import (
    AccessDenied,
    AlreadyExists,
    BaseMismatch,
    Behind,
    Conflict,
    CorruptObject,
    Fenced,
    Gone,
    InvalidArgument,
    InvalidModel,
    LayoutMismatch,
    Mirrored,
    NotFound,
    PulseError,
    StoreUnavailable,
    UnsupportedFormat,
    Untrusted,
)

TYPE_PREFIX: Final = "urn:pulse-registry:problem:"

STATUS: Final[dict[type[PulseError], HTTPStatus]] = {
    NotFound: HTTPStatus.NOT_FOUND,
    Gone: HTTPStatus.GONE,
    AlreadyExists: HTTPStatus.CONFLICT,
    Conflict: HTTPStatus.CONFLICT,
    Fenced: HTTPStatus.CONFLICT,
    Mirrored: HTTPStatus.CONFLICT,
    InvalidModel: HTTPStatus.UNPROCESSABLE_ENTITY,
    InvalidArgument: HTTPStatus.BAD_REQUEST,
    LayoutMismatch: HTTPStatus.CONFLICT,
    BaseMismatch: HTTPStatus.CONFLICT,
    CorruptObject: HTTPStatus.BAD_GATEWAY,
    Untrusted: HTTPStatus.BAD_GATEWAY,
    UnsupportedFormat: HTTPStatus.NOT_IMPLEMENTED,
    AccessDenied: HTTPStatus.FORBIDDEN,
    StoreUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    Behind: HTTPStatus.SERVICE_UNAVAILABLE,
    PulseError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""The status of each error; its class name, after `TYPE_PREFIX`, is the problem's type."""

OTHER: Final[dict[str, type[PulseError]]] = {
    "InvalidRequest": InvalidArgument,  # 400, 404, 405, 413, 422: the request itself is not valid
    "Unauthenticated": AccessDenied,  # 401: no token, a wrong or an expired one
    "DamagedRequest": StoreUnavailable,  # 400: the body does not hash to its Content-Digest: send it again
    "SlowRequest": StoreUnavailable,  # 408: the body came too slowly
    "TooManyRequests": StoreUnavailable,  # 429, with Retry-After
}
"""Problems that no error of the library stands behind, and what a client raises for them."""

_BY_NAME: Final = {kind.__name__: kind for kind in STATUS} | OTHER


def problem_of(error: PulseError) -> tuple[str, HTTPStatus]:
    """Return the problem type and the status of an error: those of its class, or of the nearest class above it."""
    kind = next(kind for kind in type(error).__mro__ if kind in STATUS)
    return TYPE_PREFIX + kind.__name__, STATUS[kind]


def error_of(problem_type: str, status: int, detail: str) -> PulseError:
    """Return the error that a problem document stands for.

    A type that this release does not know, or an answer that is no problem document at all (a proxy's), goes by its
    status alone: 401 and 403 are AccessDenied, 404 is NotFound, 410 is Gone, 408, 425, 429 and 5xx are
    StoreUnavailable, any other InvalidArgument.
    """
    kind = _BY_NAME.get(problem_type.removeprefix(TYPE_PREFIX)) if problem_type.startswith(TYPE_PREFIX) else None
    if kind is None:
        if status in (401, 403):
            kind = AccessDenied
        elif status == 404:
            kind = NotFound
        elif status == 410:
            kind = Gone
        elif status in (408, 425, 429) or status >= 500:
            kind = StoreUnavailable
        else:
            kind = InvalidArgument
    return kind(detail)
