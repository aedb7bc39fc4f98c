"""Fleet: a stream (SSE) of what changes in all runs that a token may read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from fastapi import Request
from fastapi.responses import Response
from sse_starlette import EventSourceResponse

from pulse_server.routes.dependencies import ReadRoot, RootRequest
from pulse_server.routes.operation import answer, operations
from pulse_server.runs.run_lines import Place

router = operations("events")
PING_S: Final = 15


@router.get(
    "/v1/events",
    summary="Follow all runs",
    description=(
        "The runs that the token may read, the first 1,000 by name. `Last-Event-ID` resumes a stream. The stream ends "
        "when its token was revoked or has expired."
    ),
    response_class=Response,
    responses={
        200: answer(
            "`runs`: RunChanges, at the beginning all runs that are known, in several events if there are many; later "
            "those that have changed. A comment every 15 s.",
            'event: runs\nid: 5c8f3f1ce0b4d2a6-7-200\ndata: {"whole":false,"total":200,"more":false,"runs":[]}\n\n',
            "text/event-stream",
        )
    },
)
async def follow_all(request: Request, root: ReadRoot) -> Response:
    """Follow all runs."""
    place = Place.of(request.headers.get("last-event-id", ""))
    await root.service.fleet.refresh()
    return EventSourceResponse(_events(root, place), ping=PING_S, sep="\n", shutdown_grace_period=2)


async def _events(root: RootRequest, place: Place) -> AsyncIterator[bytes]:
    """Yield what follows a place; ends when the service stops, or the token is good no more."""
    service, fleet = root.service, root.service.fleet
    service.metrics.streams.inc()
    try:
        with fleet.reading(root.who) as reader:
            while not service.stopping and (who := root.who_now()) is not None:
                reader.who = who
                place, told = fleet.read(place, who)
                if told:
                    yield told
                else:
                    await fleet.wait(PING_S)
    finally:
        service.metrics.streams.dec()
