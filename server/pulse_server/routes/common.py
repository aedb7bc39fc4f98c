"""What the modules of routes share: the parameters of every run, and how a request waits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fastapi import Request

from pulse_registry.log import RunState
from pulse_registry.log.names import GIVEN_RUN_NAME, fold
from pulse_server.auth.access import requires
from pulse_server.routes import examples
from pulse_server.routes.params import Parameter, Whole
from pulse_server.runs.feed import RunFeed

if TYPE_CHECKING:
    from pulse_server.service import Service

RUN: Final = Parameter("run", "the run's name", GIVEN_RUN_NAME, examples.RUN, stored=fold)
LAYOUT_ID: Final = Parameter("id", "the layout's id", re.compile(r"[0-9a-f]{64}"), examples.LAYOUT)
SEQ: Final = Parameter("seq", "a number of a record", re.compile(r"0|[1-9][0-9]{0,11}", re.ASCII), "43")


def wait_parameter(what: str) -> Whole:
    """Return the parameter that says how long to wait."""
    return Whole("wait", f"how many seconds to wait for {what}; at most what the service allows", 30, None, 0, 86_400)


async def feed_of(request: Request, service: Service, *, remember: bool = True) -> RunFeed:
    """Return the feed of the request's run; ``remember`` as `Feeds.open` has it.

    Raises:
        NotFound: there is no such run.
        CorruptObject, UnsupportedFormat, StoreUnavailable: its log can't be read.
    """
    run = RUN(request)
    return service.feeds.live(run) or await service.feeds.open(run, remember=remember)


async def wait_for(
    request: Request, service: Service, feed: RunFeed, ready: Callable[[RunState], bool], seconds: float
) -> bool:
    """Wait as `RunFeed.wait` does, but no longer than the service allows; then check the token again.

    Raises:
        Unauthenticated, AccessDenied: the token was revoked, has expired or was changed meanwhile.
    """
    found = await feed.wait(ready, min(seconds, service.settings.wait_max_s), request.receive)
    requires("read").check_again(request)
    return found
