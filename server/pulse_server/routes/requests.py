"""Requests for direct patches: readers ask here, and the run's compactor finds them in the bucket."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fastapi import Request
from fastapi.responses import Response

from pulse_registry.compaction.requests import LIFE, ask, check_request
from pulse_registry.errors import InvalidArgument
from pulse_registry.format import keys
from pulse_schemas import DirectRequest, SchemaError
from pulse_server.auth.access import requires
from pulse_server.auth.names import asking_reader
from pulse_server.routes import examples
from pulse_server.routes.common import RUN, feed_of
from pulse_server.routes.operations import Operation, Operations, Says
from pulse_server.routes.params import Parameter
from pulse_server.transport.answers import no_content

if TYPE_CHECKING:
    from pulse_server.service import Service

OPERATIONS: Final = Operations("requests")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,11}", re.ASCII)
_BASE: Final = Parameter("base", "the version that readers hold", _NUMBER, "17")
_TARGET: Final = Parameter("target", "the version that they are to get to", _NUMBER, "42")
_READER: Final = Parameter("reader", "random, one for a reader", re.compile(r"[0-9a-f]{32}"), examples.WRITE_ID)


@OPERATIONS.add(
    Operation(
        "PUT",
        "/v1/runs/{run}/requests/{base}/{target}/{reader}",
        "read",
        "Ask for a direct patch",
        {204: Says("It is noted, or the patch is there already.")},
        "The body is a sealed `DirectRequest` that says the same. Once enough readers ask, the run's compactor makes "
        "the patch; until then routes are as they were. All readers of one token count as one; those of an admin's "
        "token each for itself.",
        (RUN, _BASE, _TARGET, _READER),
        body="application/json",
        refuses={
            400: "It is no such document, or no patch can lead from one of the versions to the other.",
            404: "There is no such run or version, or it was retired.",
            410: "A version was retired and deleted.",
        },
    )
)
async def ask_for_patch(request: Request, service: Service) -> Response:
    """Store a reader's request."""
    run, reader = RUN(request), _READER(request)
    base, target = int(_BASE(request)), int(_TARGET(request))
    feed = await feed_of(request, service)
    try:
        asked = DirectRequest.unseal(await request.body())
    except SchemaError as error:
        raise InvalidArgument(f"run {run!r}: this is no sealed request: {error}") from error
    if (asked.run, asked.base, asked.target, asked.reader) != (run, base, target, reader):
        raise InvalidArgument(f"run {run!r}: the request is not the one that its address names")
    if target >= len(feed.state.versions):
        await feed.refresh()  # committed at another replica, perhaps
    if check_request(feed.state, base, target):
        principal = requires("read").check(request)
        reader = asking_reader(principal, reader)
        name = run, keys.request_key(base, target, reader)
        service.requests.claim(principal.id, name, len(await request.body()), LIFE.total_seconds())
        await service.call(ask, service.store_of(run), run, base, target, reader)
    return no_content()
