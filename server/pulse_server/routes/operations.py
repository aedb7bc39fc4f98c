"""Operations of the API: what each is called, needs, takes and answers; and the routes that carry them out.

A route checks the token and calls the handler; it does no more, because hundreds of workers ask at once. What OpenAPI
says of an operation is what is declared here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.datastructures import URLPath
from starlette.routing import BaseRoute, Match, NoMatchFound, Route
from starlette.types import Receive, Scope, Send

from pulse_schemas.api import Answer
from pulse_schemas.api import Request as RequestBody
from pulse_server.auth.access import Guard, requires
from pulse_server.errors import InvalidRequest
from pulse_server.routes.params import AnyParameter

if TYPE_CHECKING:
    from pulse_server.service import Service

Needs = Literal["none", "any", "read", "publish", "admin"]
"""The scope that an operation needs: none at all, that of any good token, or one of the three."""

SMALL_BODY: Final = 4 << 10
"""Of a request with few fields: three times what the longest of ours takes, and read in well under a millisecond."""

Handler = Callable[[Request, "Service"], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Says:
    """One answer of an operation: its body by example, or, for other media types, in words."""

    description: str
    example: Answer | str | None = None
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def model(self) -> type[BaseModel] | None:
        """The model of its body, None where it has none."""
        return type(self.example) if isinstance(self.example, BaseModel) else None


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    Attributes:
        method, path: of the request.
        needs: the scope.
        summary, description: for people.
        parameters: of path and query.
        body: an example of the JSON body, or the media type of another one.
        max_body: bytes of the body; None: as many as the service's settings allow.
        answers: what it answers where all is well, by status.
        refuses: statuses of the problems of its own, in words.
        opened_by: the setting that lets it be used without a token.
    """

    method: str
    path: str
    needs: Needs
    summary: str
    answers: Mapping[int, Says]
    description: str = ""
    parameters: tuple[AnyParameter, ...] = ()
    body: RequestBody | str | None = None
    max_body: int | None = SMALL_BODY
    refuses: Mapping[int, str] = field(default_factory=dict)
    opened_by: str = ""


class Operations:
    """The operations of one module of routes."""

    def __init__(self, tag: str) -> None:
        """Begin with none; ``tag`` groups them in OpenAPI."""
        self.tag = tag
        self.all: list[tuple[Operation, Handler]] = []

    def add(self, operation: Operation) -> Callable[[Handler], Handler]:
        """Return a decorator that makes a function carry out an operation."""

        def decorate(handler: Handler) -> Handler:
            self.all.append((operation, handler))
            return handler

        return decorate


class PathRoute(Route):
    """All operations of one path."""

    def __init__(self, path: str, operations: Collection[tuple[Operation, Handler]]) -> None:
        """Route a path; an operation for GET answers HEAD, too, unless there is one for that."""
        self._max_body = {operation.method: operation.max_body for operation, _ in operations}
        self._by_method = {operation.method: (_check_of(operation), handler) for operation, handler in operations}
        if "GET" in self._by_method:
            self._by_method.setdefault("HEAD", self._by_method["GET"])
        super().__init__(path, _unused, methods=sorted(self._by_method))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Tell whether a request is for this path; the middleware sees in ``route`` which one it was."""
        match, child = super().matches(scope)
        if match != Match.NONE:
            child["route"] = self
        return match, child

    def admit(self, scope: Scope) -> int | None:
        """Check a request's token as `handle` will, and return how long its body may be; see `NounRoutes.admit`."""
        check, _ = self._by_method.get(scope["method"], (lambda request: None, _unused))
        check(Request(scope))
        return self._max_body.get(scope["method"], SMALL_BODY)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the token, and carry out the operation."""
        found = self._by_method.get(scope["method"])
        if found is None:
            raise InvalidRequest(
                f"this address does not take {scope['method']}",
                HTTPStatus.METHOD_NOT_ALLOWED,
                headers={"allow": ", ".join(sorted(self._by_method))},
            )
        check, handler = found
        request = Request(scope, receive, send)
        check(request)
        response = await handler(request, scope["app"].state.service)
        await response(scope, receive, send)


class NounRoutes(BaseRoute):
    """Many routes below one prefix, found by the segment that follows: to try them one by one would cost too much."""

    def __init__(self, routes: Iterable[PathRoute]) -> None:
        """Group routes by the fifth part of their paths (``/v1/runs/{run}/<noun>``), "" where they have none."""
        self._by_noun: dict[str, list[PathRoute]] = {}
        for route in routes:
            self._by_noun.setdefault(_noun(route.path), []).append(route)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Tell whether a request is for one of the paths."""
        if scope["type"] == "http":
            for route in self._by_noun.get(_noun(scope["path"].removeprefix(scope.get("root_path", ""))), ()):
                match, child = route.matches(scope)
                if match != Match.NONE:
                    return match, child
        return Match.NONE, {}

    def admit(self, scope: Scope) -> int | None:
        """Return how long the body of a request may be, before it is read; None: as long as the settings allow.

        Raises:
            Unauthenticated, InvalidArgument, AccessDenied: the operation's own check of token and run refuses it.
        """
        match, child = self.matches(scope)
        if match == Match.NONE:
            return SMALL_BODY
        route: PathRoute = child["route"]
        return route.admit({**scope, **child})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry out the operation that was found."""
        await scope["route"].handle(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: object) -> URLPath:
        """Paths are not looked up by name here."""
        raise NoMatchFound(name, dict(path_params))


def _noun(path: str) -> str:
    parts = path.split("/", 5)
    return parts[4] if len(parts) > 4 else ""


def routes_of(modules: Iterable[Operations]) -> NounRoutes:
    """Return the routes that carry out all operations."""
    by_path: dict[str, list[tuple[Operation, Handler]]] = {}
    for module in modules:
        for operation, handler in module.all:
            by_path.setdefault(operation.path, []).append((operation, handler))
    return NounRoutes(PathRoute(path, operations) for path, operations in by_path.items())


def _check_of(operation: Operation) -> Callable[[Request], object]:
    match operation.needs:
        case "none":
            return lambda request: None
        case "any":
            return _identify
        case scope:
            check = requires(scope).check
            return _unless(operation.opened_by, check) if operation.opened_by else check


def _unless(setting: str, check: Callable[[Request], object]) -> Callable[[Request], object]:
    def checked(request: Request) -> object:
        return None if getattr(request.app.state.service.settings, setting) else check(request)

    return checked


def _identify(request: Request) -> object:
    guard: Guard = request.app.state.guard
    return guard.identify(request.scope)


async def _unused(request: Request) -> Response:
    raise NotImplementedError
