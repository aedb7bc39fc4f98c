"""Events: a stream (SSE) of a run's new versions, and of what changes among its workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Annotated, Final

from fastapi import Request
from fastapi.responses import Response
from sse_starlette import EventSourceResponse

from pulse_registry.errors import StoreUnavailable
from pulse_registry.log import RunState
from pulse_schemas.api import MissedVersions
from pulse_server.routes.dependencies import ReadRun
from pulse_server.routes.operation import answer, operations, problem
from pulse_server.routes.params import Before, read_whole, whole
from pulse_server.runs.bodies import version_body
from pulse_server.runs.feed import RunFeed
from pulse_server.service import Service
from pulse_server.transport.server_sent import event

router = operations("events")
PING_S: Final = 15
_FIRST_LIST_S: Final = 1.0
_MAX_TOLD: Final = 1_000
"""Versions that a stream tells of at once: those who missed more read pages, which cost the service less a version."""
_PIECE: Final = 32
_PIECE_BYTES: Final = 64 << 10
"""Of many versions, the events that are made at a time, beside the event loop; bytes but for the last one's."""

After = Annotated[Before | None, whole("the versions over this one; without it, new versions only", 41)]


@router.get(
    "/v1/runs/{run}/events",
    summary="Follow a run",
    description=(
        "`Last-Event-ID` resumes a stream. Of more than 1,000 versions at once only the newest are sent, after a "
        "`missed`: `GET .../versions` has the others. The stream ends when its token was revoked or has expired."
    ),
    response_class=Response,
    responses={
        200: answer(
            "`version`: a VersionBody, its id the version's number. `missed`: the first and the last of the "
            "versions that the stream leaves out, its id the last one's. `workers`: a WorkerList of the workers that "
            "are furthest behind, with a summary of all, at the beginning, and where the stream has fallen behind. "
            "`worker_changes`: WorkerChanges of that list. A comment every 15 s.",
            'event: version\nid: 42\ndata: {"version":42,"step":420}\n\n',
            "text/event-stream",
        ),
        404: problem("There is no such run."),
    },
)
async def follow(request: Request, run: ReadRun, after: After = None) -> Response:
    """Follow a run."""
    last = request.headers.get("last-event-id", "")
    if last:
        after = read_whole("last-event-id", last, -1)
    feed = await run.feed()
    newest = len(feed.state.versions) - 1
    events = _events(run.service, feed, newest if after is None else after, run.may_go_on)
    return EventSourceResponse(events, ping=PING_S, sep="\n", shutdown_grace_period=2)


async def _events(service: Service, feed: RunFeed, seen: int, may_read: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the versions over ``seen``, and the workers; ends when the service stops, or the token is good no more."""
    told = -1
    feed.follow()
    service.metrics.streams.inc()
    feed.users += 1
    try:
        with suppress(StoreUnavailable, TimeoutError):  # the others' reports come later, then
            async with asyncio.timeout(_FIRST_LIST_S):
                await service.workers.gather(feed)
        while not service.stopping and may_read():
            while seen < len(feed.state.versions) - 1:
                seen, events = await _news(service, feed, seen)
                if not may_read():
                    return
                if events:
                    yield events
            edition, roster = feed.edition, await service.workers.roster(feed)
            changes = roster.since(told)
            if changes and may_read():
                if told < 0:
                    roster.readers += 1
                told = roster.number
                yield changes
            await feed.wait_for_edition(edition, seen, min(PING_S, service.settings.report_seconds))
            service.workers.begin_gathering(feed)  # what a worker told this replica does not wait for it
    finally:
        if told >= 0:
            feed.roster.readers -= 1
        feed.users -= 1
        service.metrics.streams.dec()


async def _news(service: Service, feed: RunFeed, seen: int) -> tuple[int, bytes]:
    """Return events of versions over ``seen``, of which there is one, and the version up to which all is told then."""
    state = feed.state
    count = len(state.versions)
    if seen + 1 < count - _MAX_TOLD:
        missed = MissedVersions(first=seen + 1, last=count - _MAX_TOLD - 1)
        return missed.last, event("missed", missed.model_dump_json(), str(missed.last))
    if seen + 2 < count:
        return await service.render(_piece, state, seen + 1, min(seen + _PIECE, count - 1))
    return seen + 1, _newest(feed, state)


def _piece(state: RunState, first: int, last: int) -> tuple[int, bytes]:
    """Return the events of versions, and the last version that they tell of."""
    events: list[bytes] = []
    nbytes, told = 0, first - 1
    while told < last and nbytes <= _PIECE_BYTES:
        told += 1
        events.append(_version(state, told))
        nbytes += len(events[-1])
    return told, b"".join(events)


def _newest(feed: RunFeed, state: RunState) -> bytes:
    """Return the event of the newest version; all streams share it."""
    made = feed.cache.get("event")
    if not isinstance(made, bytes):
        made = feed.cache["event"] = _version(state, len(state.versions) - 1)
    return made


def _version(state: RunState, number: int) -> bytes:
    """Return the event that tells of a version; nothing of one that was retired."""
    entry = None if state.is_retired(number) else state.find(number)
    return b"" if entry is None else event("version", version_body(state, entry).model_dump_json(), str(number))
