"""Operations of the API as FastAPI's path operations: a route class that checks the token before any body is read.

What every operation answers besides its own (a bad token, a limit, a store that is down) is added to its responses
here, once, so that OpenAPI tells it and no module repeats it.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from pulse_schemas.api import Answer
from pulse_server.errors import InvalidRequest, unprocessable
from pulse_server.routes.dependencies import RunRequest, RunToken, Token
from pulse_server.routes.json_body import MAX_VALUES, ReadRequest, body_of
from pulse_server.transport.problems import MEDIA_TYPE

SMALL_BODY: Final = 4 << 10
"""Of a request with few fields: three times what the longest of ours takes, and read in well under a millisecond."""
_MAX_QUERY, _MAX_FIELDS = 8 << 10, 64
_SHORT_QUERY: Final = 256
_MOST_KNOWN: Final = 4096

_EVERYWHERE: Final[dict[int, str]] = {
    HTTPStatus.UNPROCESSABLE_ENTITY: "A parameter or the body is not valid.",
    HTTPStatus.TOO_MANY_REQUESTS: "Over a limit; `Retry-After` says when to try again.",
    HTTPStatus.SERVICE_UNAVAILABLE: "The store does not answer.",
    HTTPStatus.BAD_GATEWAY: "What the store holds is damaged.",
    HTTPStatus.NOT_IMPLEMENTED: "What the store holds was written by a newer release.",
    HTTPStatus.UNAUTHORIZED: "No token, a wrong or an expired one.",
}
_WITH_SCOPE: Final[dict[int, str]] = {HTTPStatus.FORBIDDEN: "The token does not allow this."}
_WITH_RUN: Final[dict[int, str]] = {HTTPStatus.BAD_REQUEST: "A name or the request is not valid."}
_WITH_BODY: Final[dict[int, str]] = {HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too long."}
_PROBLEM: Final = {"$ref": "#/components/schemas/Problem"}

Endpoint = TypeVar("Endpoint", bound=Callable[..., object])
Told = dict[str, Any]
Responses = dict[int | str, Told]


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """How long a body may be, in bytes (None: as the settings allow), and about how many values a JSON one has."""

    nbytes: int | None = SMALL_BODY
    values: int = MAX_VALUES


def body_limit(nbytes: int | None, *, values: int = MAX_VALUES) -> Callable[[Endpoint], Endpoint]:
    """Return a decorator that bounds the body of a path operation; without it, `BodyLimit()` does."""

    def decorate(endpoint: Endpoint) -> Endpoint:
        endpoint.body_limit = BodyLimit(nbytes, values)  # type: ignore[attr-defined]
        return endpoint

    return decorate


def hot(endpoint: Endpoint) -> Endpoint:
    """Mark a path operation of a run that hundreds of workers ask, of parameters in path and query alone.

    What FastAPI made of a query is remembered, and the same one is not read again: only the token is checked anew.
    """
    endpoint.hot = True  # type: ignore[attr-defined]
    return endpoint


def operations(tag: str) -> APIRouter:
    """Return the router of one module's path operations; ``tag`` groups them in OpenAPI."""
    return APIRouter(
        tags=[tag], route_class=Operation, generate_unique_id_function=lambda route: route.name, redirect_slashes=False
    )


def answer(
    description: str,
    example: Answer | str | None = None,
    media_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> Told:
    """Return one answer for ``responses``; its body by example, of a media type that has no model in words."""
    told: Told = {"description": description}
    if headers:
        told["headers"] = {
            name: {"description": words, "schema": {"type": "string"}} for name, words in headers.items()
        }
    if isinstance(example, str):
        schema = {"type": "object" if media_type == "application/json" else "string"}
        told["content"] = {media_type: {"schema": schema, "example": example}}
    elif example is not None:
        told["content"] = {media_type: {"example": json.loads(example.model_dump_json())}}
    return told


def problem(description: str) -> Told:
    """Return a refusal, for ``responses``; its body is a problem document."""
    return {"description": description, "content": {MEDIA_TYPE: {"schema": _PROBLEM}}}


def raw_body(media_type: str = "application/json") -> Told:
    """Return for ``openapi_extra`` a body that the operation reads by itself: no model has its bytes."""
    schema = {"type": "object"} if media_type == "application/json" else {"type": "string", "format": "binary"}
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


class Operation(APIRoute):
    """A path operation of ours: the scope first, then the body in its bounds, then what FastAPI does.

    One for GET answers HEAD, too, unless there is one for that before it.

    Attributes:
        known: what was read of a question, by question, where the operation is ``hot``; else None.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Route a path, as FastAPI does."""
        self.known: dict[tuple[Any, ...], dict[str, Any]] | None = {} if getattr(endpoint, "hot", False) else None
        self._answer = endpoint
        super().__init__(path, endpoint if self.known is None else self._remembering(endpoint), **options)
        asked: list[object] = [dependant.call for dependant in self.dependant.dependencies]
        self.token: Token | None = next((call for call in asked if isinstance(call, Token)), None)
        self.body_limit: BodyLimit = getattr(endpoint, "body_limit", BodyLimit())
        self.responses = {**{status: problem(words) for status, words in self._refuses().items()}, **self.responses}
        self.description = options.get("description") or ""  # docstrings are for who reads the code
        needs = "none" if self.token is None else self.token.needs
        self.openapi_extra = {"x-pulse-scope": needs, **(self.openapi_extra or {})}

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Tell whether a request is for this operation."""
        match, child = super().matches(scope)
        if match == Match.PARTIAL and self._takes(scope["method"]):
            return Match.FULL, child
        return match, child

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry out the operation, or say which methods the path takes."""
        if not self._takes(scope["method"]):
            allowed = sorted(methods_of(scope["app"].router.routes, self.path))
            raise InvalidRequest(
                f"this address does not take {scope['method']}",
                HTTPStatus.METHOD_NOT_ALLOWED,
                headers={"allow": ", ".join(allowed)},
            )
        known = None if self.known is None else self.known.get(_question(scope))
        if known is None or not isinstance(self.token, RunToken):
            await self.app(scope, receive, send)
            return
        response = await self._answer(run=self.token.run_of(Request(scope, receive, send)), **known)
        await response(scope, receive, send)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request: FastAPI's handler, after the checks that come before it."""
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            self.check(request)  # before any parameter, and before the body: FastAPI would read it first
            _check_query(request.scope["query_string"])
            return await handle(await self._read(request))

        return checked

    def check(self, request: Request) -> None:
        """Check a request's token as the operation will.

        Raises:
            Unauthenticated, InvalidArgument, AccessDenied: it refuses the token, or the run.
        """
        if self.token is not None:
            self.token.check(request)

    def _remembering(self, endpoint: Callable[..., Any]) -> Callable[..., Any]:
        """Return an endpoint that notes with which values FastAPI calls it."""

        async def answer(run: RunRequest, **values: Any) -> Any:
            query: bytes = run.request.scope["query_string"]
            if self.known is not None and len(query) <= _SHORT_QUERY:
                if len(self.known) >= _MOST_KNOWN:
                    self.known.clear()
                self.known[_question(run.request.scope)] = values
            return await endpoint(run=run, **values)

        wrapped = functools.wraps(endpoint)(answer)
        wrapped.__signature__ = inspect.signature(endpoint, eval_str=True)  # type: ignore[attr-defined]
        return wrapped

    async def _read(self, request: Request) -> Request:
        if self.body_field is None:
            return request
        model: type[BaseModel] = self.body_field.field_info.annotation  # type: ignore[assignment]
        document = await body_of(request, model, max_values=self.body_limit.values)
        return ReadRequest(request, await request.body(), document)

    def _takes(self, method: str) -> bool:
        methods = self.methods or set()
        return method in methods or (method == "HEAD" and "GET" in methods)

    def _refuses(self) -> dict[int, str]:
        """Return the problems that the operation has in common with others, in words."""
        with_body = self.body_field is not None or "requestBody" in (self.openapi_extra or {})
        needs = "none" if self.token is None else self.token.needs
        asks = self.dependant.query_params or self.dependant.path_params or "{" in self.path
        found = dict(_EVERYWHERE) if needs != "none" else {}
        found |= _WITH_SCOPE if needs not in ("none", "any") else {}
        found |= _WITH_RUN if asks or with_body else {}
        return found | (_WITH_BODY if with_body else {})


def methods_of(routes: Iterable[BaseRoute], path: str) -> set[str]:
    """Return the methods that a path takes."""
    same = (route for route in routes if isinstance(route, Operation) and route.path == path)
    methods = {method for route in same for method in route.methods or ()}
    return methods | ({"HEAD"} if "GET" in methods else set())


def admit(routes: Iterable[BaseRoute], scope: Scope) -> int | None:
    """Return how long the body of a request may be, before it is read; None: as long as the settings allow.

    Raises:
        Unauthenticated, InvalidArgument, AccessDenied: the operation's own check of token and run refuses it.
    """
    for route in routes:
        match, child = route.matches(scope) if isinstance(route, Operation) else (Match.NONE, {})
        if match == Match.FULL and isinstance(route, Operation):
            route.check(Request({**scope, **child}))
            return route.body_limit.nbytes
    return SMALL_BODY


def _question(scope: Scope) -> tuple[Any, ...]:
    """Return what is asked of a run, whatever its name: the other parts of the path, and the query."""
    parts = (part for name, part in scope["path_params"].items() if name != "run")
    return (*parts, scope["query_string"])


def _check_query(query: bytes) -> None:
    if len(query) > _MAX_QUERY:
        raise unprocessable(f"the query is longer than {_MAX_QUERY:,} bytes")
    if query.count(b"&") >= _MAX_FIELDS:
        raise unprocessable(f"the query can't be read: it has more than {_MAX_FIELDS} fields")
