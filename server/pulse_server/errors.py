"""Refusals by the service itself, before the library is asked: each is a problem document of its own.

Refused                 base: status, problem name and headers of the answer
├── Unauthenticated     401: no token, a wrong or an expired one
├── TooManyRequests     429: over a limit; Retry-After says when to come again
├── DamagedRequest      400: the body does not hash to its Content-Digest; it can be sent again
├── SlowRequest         408: the body came too slowly; it can be sent again
└── InvalidRequest      400, 413, 431: the request itself is not valid

A token that is good but not enough is the library's own AccessDenied (403).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import ClassVar, Final

from pulse_registry.client.problems import TYPE_PREFIX
from pulse_registry.errors import AccessDenied, InvalidArgument, PulseError, StoreUnavailable
from pulse_schemas.api import Problem

MOST_SHOWN: Final = 2_000
"""Letters of a problem's detail, and of the path that it names: who sent the request must not choose how many."""

_MOST_QUOTED: Final = 80
"""Letters of a value that is quoted in a detail."""


def document(problem_type: str, status: HTTPStatus, detail: str, instance: str) -> bytes:
    """Return a problem document (application/problem+json); ``instance`` is the request's path."""
    problem = Problem(
        type=problem_type,
        title=status.phrase,
        status=status.value,
        detail=_shown(detail),
        instance=_shown(instance),
    )
    return problem.model_dump_json().encode()


def _shown(text: str) -> str:
    return text[:MOST_SHOWN].encode(errors="replace").decode()


class Refused(PulseError):
    """A request that the service does not take; ``problem`` is the name of its problem type."""

    problem: ClassVar[str]
    status: HTTPStatus

    def __init__(self, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        """Say why, in words that the caller may see, and which headers the answer has."""
        super().__init__(detail)
        self.headers: Mapping[str, str] = headers or {}

    @property
    def problem_type(self) -> str:
        """The problem's type, a URN."""
        return TYPE_PREFIX + self.problem

    def body(self, instance: str) -> bytes:
        """Return the problem document (application/problem+json); ``instance`` is the request's path."""
        return document(self.problem_type, self.status, str(self), instance)


class Unauthenticated(Refused, AccessDenied):
    """No token, a wrong or an expired one."""

    problem = "Unauthenticated"
    status = HTTPStatus.UNAUTHORIZED

    def __init__(self, detail: str) -> None:
        """Say what is wrong; the answer asks for a bearer token."""
        super().__init__(detail, headers={"www-authenticate": 'Bearer realm="pulse"'})


class TooManyRequests(Refused, StoreUnavailable):
    """Over a limit for the moment."""

    problem = "TooManyRequests"
    status = HTTPStatus.TOO_MANY_REQUESTS

    def __init__(self, detail: str, retry_after_s: float) -> None:
        """Say which limit, and after how many seconds it is worth coming again."""
        super().__init__(detail, headers={"retry-after": str(max(1, math.ceil(retry_after_s)))})


class DamagedRequest(Refused, StoreUnavailable):
    """The body is not what its Content-Digest says; nothing was done."""

    problem = "DamagedRequest"
    status = HTTPStatus.BAD_REQUEST


class SlowRequest(Refused, StoreUnavailable):
    """The body did not come in time; nothing was done."""

    problem = "SlowRequest"
    status = HTTPStatus.REQUEST_TIMEOUT


class InvalidRequest(Refused, InvalidArgument):
    """The request itself is not valid: ``status`` says in which way."""

    problem = "InvalidRequest"

    def __init__(self, detail: str, status: HTTPStatus, *, headers: Mapping[str, str] | None = None) -> None:
        """Say what is wrong with it."""
        super().__init__(detail, headers=headers)
        self.status = status


def unprocessable(detail: str) -> InvalidRequest:
    """Return the refusal of a parameter or a body that is not as it must be (422)."""
    return InvalidRequest(detail, HTTPStatus.UNPROCESSABLE_ENTITY)


def shown(value: str) -> str:
    """Return what a client sent as it may be shown: its first letters, none of them beyond ASCII."""
    return ascii(value) if len(value) <= _MOST_QUOTED else f"{value[: _MOST_QUOTED - 3]!a}..."
