"""Events: a stream (SSE) of a run's new versions, and of its workers where they change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Request
from fastapi.responses import Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from pulse_registry.errors import StoreUnavailable
from pulse_registry.log import RunState
from pulse_schemas import VersionEntry
from pulse_schemas.api import MissedVersions
from pulse_server.routes.dependencies import ReadRun
from pulse_server.routes.operation import answer, operations, problem
from pulse_server.routes.params import Before, read_whole, whole
from pulse_server.runs.bodies import version_body
from pulse_server.runs.feed import RunFeed
from pulse_server.service import Service

router = operations("events")
PING_S: Final = 15
_FIRST_LIST_S: Final = 1.0
_MAX_TOLD: Final = 1_000
"""Versions that a stream tells of at once: those who missed more read pages, which cost the service less a version."""
_KEPT: Final = 64
"""Of the newest versions, the events: all streams send the same bytes."""

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
            "versions that the stream leaves out, its id the last one's. `workers`: a WorkerList, at the beginning "
            "and when it changes. A comment every 15 s.",
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


@dataclass(frozen=True, slots=True)
class _Told:
    """A list of workers as it is sent, and the edition and the time that it is of."""

    when: tuple[int, int]
    event: bytes


async def _events(service: Service, feed: RunFeed, seen: int, may_read: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the versions over ``seen``, and the workers; ends when the service stops, or the token is good no more."""
    told = b""
    feed.follow()
    service.metrics.streams.inc()
    feed.users += 1
    try:
        with suppress(StoreUnavailable, TimeoutError):  # the others' reports come later, then
            async with asyncio.timeout(_FIRST_LIST_S):
                await service.workers.gather(feed)
        while not service.stopping and may_read():
            for version, event in _news(feed, seen):
                seen = version
                if not may_read():
                    return
                if event:
                    yield event
            edition, workers = feed.edition, await _workers(service, feed)
            if workers != told and may_read():
                told = workers
                yield workers
            await feed.wait_for_edition(edition, seen, min(PING_S, service.settings.report_seconds))
            service.workers.begin_gathering(feed)  # what a worker told this replica does not wait for it
    finally:
        feed.users -= 1
        service.metrics.streams.dec()


def _news(feed: RunFeed, seen: int) -> Iterator[tuple[int, bytes]]:
    """Yield the events of the versions over ``seen``, each with the version up to which all is told with it."""
    state = feed.state
    first = max(seen + 1, len(state.versions) - _MAX_TOLD)
    if first > seen + 1:
        missed = MissedVersions(first=seen + 1, last=first - 1)
        yield first - 1, _event("missed", missed.model_dump_json(), str(first - 1))
    for entry in state.versions[first:]:
        yield entry.version, b"" if state.is_retired(entry.version) else _version(feed, state, entry)


def _version(feed: RunFeed, state: RunState, entry: VersionEntry) -> bytes:
    """Return the event that tells of a version; of a new one, all streams share it."""
    key = ("event", entry.version)
    event = feed.cache.get(key) if state is feed.state else None
    if not isinstance(event, bytes):
        event = _event("version", version_body(state, entry).model_dump_json(), str(entry.version))
        if state is feed.state and entry.version >= len(state.versions) - _KEPT:
            feed.cache[key] = event
    return event


async def _workers(service: Service, feed: RunFeed) -> bytes:
    """Return the list of a run's workers; all streams share it. It is made anew now and then: reports grow old."""
    when = feed.edition, int(asyncio.get_running_loop().time() / service.settings.report_seconds)
    known = feed.cache.get("workers")
    if isinstance(known, _Told) and known.when == when:
        return known.event
    event = _event("workers", (await service.workers.listing(feed)).body().decode())
    feed.cache["workers"] = _Told(when, event)
    return event


def _event(kind: str, data: str, number: str | None = None) -> bytes:
    return ServerSentEvent(data, event=kind, id=number, sep="\n").encode()
