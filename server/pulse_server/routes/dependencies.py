"""FastAPI dependencies of path operations: a token of a scope, the run that a request is about, the service.

FastAPI reads the types of a dependency's parameters when it is made: no `annotations` from the future here.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, cast

from fastapi import Depends, Request, Security
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase

from pulse_registry.errors import AccessDenied
from pulse_schemas.api import Scope
from pulse_server.auth.access import Principal, Requirement
from pulse_server.routes.params import RunName
from pulse_server.runs.feed import RunFeed
from pulse_server.runs.log_feed import LogFeed, R, S
from pulse_server.runs.outer_feed import OuterFeed
from pulse_server.service import Service
from pulse_server.tokens import SCOPES

_SCOPES: Final[dict[str, Scope]] = {scope: scope for scope in SCOPES}
_EARLIEST: Final = 0.75
"""Of the time that somebody would wait: when a wait in vain may end."""


class Token(SecurityBase):
    """Asks for a token of a scope; for an operation of a run, for that run.

    Attributes:
        needs: the scope; ``any`` takes any good token.
    """

    def __init__(self, needs: str) -> None:
        """Say which scope."""
        self.needs = needs
        self.model = HTTPBearer(description="made with `pulse token new`")
        self.scheme_name = "token"
        self.requirement = Requirement(_SCOPES.get(needs))

    def check(self, request: Request) -> Principal | None:
        """Return whose request this is, if it may make it: see `Requirement.check`."""
        return self.requirement.check(request)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request about a run by whoever has a token for it.

    Attributes:
        name: the run's.
        who: whose token the request has.
        service: that answers.
    """

    name: str
    who: Principal
    service: Service
    request: Request
    token: Requirement

    async def feed(self, *, remember: bool = True) -> RunFeed:
        """Return the run's feed; ``remember`` as `Feeds.open` has it.

        Raises:
            NotFound: there is no such run.
            CorruptObject, UnsupportedFormat, StoreUnavailable: its log can't be read.
        """
        feeds = self.service.feeds
        return feeds.live(self.name) or await feeds.open(self.name, remember=remember)

    async def outer_feed(self) -> OuterFeed:
        """Return the feed of the run's outer rounds, which others may have begun at another replica.

        Raises:
            NotFound: it has none.
            CorruptObject, UnsupportedFormat, StoreUnavailable: their log can't be read.
        """
        feeds = self.service.outer_feeds
        return feeds.live(self.name) or await feeds.open(self.name, remember=False)

    async def wait_for(self, feed: LogFeed[S, R], ready: Callable[[S], bool], seconds: float) -> bool:
        """Wait as `LogFeed.wait` does, but no longer than the service allows; then check the token again.

        A wait in vain ends up to a quarter earlier than it might: who began to wait together, as after a restart of the
        service, would ask again together, each time.

        Raises:
            Unauthenticated, AccessDenied: the token was revoked, has expired or was changed meanwhile.
        """
        longest_s = min(seconds, self.service.settings.wait_max_s)
        found = await feed.wait(ready, random.uniform(_EARLIEST * longest_s, longest_s), self.request.receive)
        self.token.check_again(self.request)
        return found

    def may_go_on(self) -> bool:
        """Tell whether the token, as the tokens are now, still allows the request."""
        return self.token.holds(self.request)


@dataclass(frozen=True, slots=True)
class RootRequest:
    """A request about all runs that a token may read.

    Attributes:
        who: whose token the request has.
        service: that answers.
    """

    who: Principal
    service: Service
    request: Request
    token: Requirement

    def who_now(self) -> Principal | None:
        """Return whose token it is, as the tokens are now; None where it is good no more."""
        try:
            return self.token.check_again(self.request)
        except AccessDenied:
            return None


class RunToken(Token):
    """Asks for a token of a scope for the run in the path, and returns the run."""

    async def __call__(self, request: Request, run: RunName) -> RunRequest:
        """Return the run that the request is about, if whoever asks may: see `check`."""
        return self.run_of(request)

    def run_of(self, request: Request) -> RunRequest:
        """Return the run that the request is about, if whoever asks may: see `check`."""
        who, run = self.requirement.check(request), request.path_params["run"]
        return RunRequest(run, who, service_of(request), request, self.requirement)


async def _service(request: Request) -> Service:
    return service_of(request)


def service_of(request: Request) -> Service:
    """Return the service behind the application that a request came to."""
    return cast(Service, request.app.state.service)


class ServiceToken(Token):
    """Asks for a token of a scope, whatever its runs, and returns whose it is."""

    async def __call__(self, request: Request) -> Principal | None:
        """Return whose request this is; see `check`."""
        return self.check(request)


class RootToken(Token):
    """Asks for a token of a scope, whatever its runs, for a request that may last."""

    async def __call__(self, request: Request) -> RootRequest:
        """Return the request, if whoever asks may: see `check`."""
        return RootRequest(self.requirement.check(request), service_of(request), request, self.requirement)


class MetricsToken(ServiceToken):
    """Asks for a token, unless the settings say that the metrics are for all."""

    def check(self, request: Request) -> Principal | None:
        """Return whose request this is, None where nobody needs a token: see `Requirement.check`."""
        return None if service_of(request).settings.open_metrics else super().check(request)


TheService = Annotated[Service, Depends(_service)]
AnyToken = Annotated[Principal, Security(ServiceToken("any"))]
ReadToken = Annotated[Principal, Security(ServiceToken("read"))]
"""Of an operation that is about no run."""

ReadRoot = Annotated[RootRequest, Security(RootToken("read"))]
ReadRun = Annotated[RunRequest, Security(RunToken("read"))]
PublishRun = Annotated[RunRequest, Security(RunToken("publish"))]
MirrorRun = Annotated[RunRequest, Security(RunToken("mirror"))]
