"""Versions: all of them by page, one of them, and the newest, for which a request can wait."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fastapi import Request
from fastapi.responses import Response

from pulse_registry.errors import NotFound
from pulse_registry.log import RunState
from pulse_schemas import VersionEntry, canonical_json
from pulse_schemas.api import VersionBody, VersionPage
from pulse_server.routes import examples
from pulse_server.routes.common import RUN, feed_of, wait_for, wait_parameter
from pulse_server.routes.operations import Operation, Operations, Says
from pulse_server.routes.params import Choice, Parameter, Whole
from pulse_server.runs.bodies import version_body
from pulse_server.runs.feed import RunFeed
from pulse_server.transport.answers import Rendered, no_content

if TYPE_CHECKING:
    from pulse_server.service import Service

OPERATIONS: Final = Operations("versions")
_STEP: Final = 2**63 - 1
_LOOKED: Final = 10_000
"""Versions that are looked at for one page."""
_PAGE_BYTES: Final = 8 << 20
"""Of metadata in one page, but for its last version's."""
_VERSION: Final = Parameter(
    "version",
    "`latest`, a number, or `step:` and the trainer's label",
    re.compile(r"latest|0|[1-9][0-9]{0,11}|step:(0|-?[1-9][0-9]{0,18})", re.ASCII),
    "latest",
)
_NEWER: Final = Whole("after", "answer only with a version over this one; for `latest`", 41, None, -1)
_WAIT: Final = wait_parameter("a version over `after`")
_AFTER: Final = Whole("after", "the versions over this one", 41, -1, -1)
_LIMIT: Final = Whole("limit", "how many at most", 100, 100, 1, 1000)
_KIND: Final = Choice("kind", "only versions that were committed so", ("keyframe", "patch"))
_MIN_STEP: Final = Whole("min_step", "only steps from this one on", 400, None, -_STEP - 1, _STEP)
_MAX_STEP: Final = Whole("max_step", "only steps up to this one", 500, None, -_STEP - 1, _STEP)


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/runs/{run}/versions/{version}",
        "read",
        "Show one version, or wait for the next",
        {
            200: Says("The version.", examples.VERSION, headers={"Age": "seconds since the log was last looked at"}),
            204: Says("There is no version over `after` yet."),
        },
        "`latest?after=N&wait=S` answers as soon as there is a version over N.",
        (RUN, _VERSION, _NEWER, _WAIT),
        refuses={404: "There is no such run or version.", 410: "The version was retired and deleted."},
    )
)
async def show_version(request: Request, service: Service) -> Response:
    """Show one version."""
    name = _VERSION(request)
    feed = await feed_of(request, service)
    if name != "latest":
        return await _show(feed, name)
    if request.scope["query_string"]:
        after = _NEWER(request)
        if after is not None and not await _newer(request, service, feed, after):
            return no_content()
    if feed.latest is None:
        raise NotFound(f"run {feed.run!r} has no versions yet")
    return feed.latest.aged(feed.age_s)


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/runs/{run}/versions",
        "read",
        "List versions, oldest first",
        {
            200: Says(
                "A page of versions, which may have fewer than `limit`, or none, where others follow. Retired ones are "
                "left out.",
                VersionPage(run=examples.RUN, versions=(examples.VERSION,), next=None, age_s=0.1),
            )
        },
        parameters=(RUN, _AFTER, _LIMIT, _KIND, _MIN_STEP, _MAX_STEP),
        refuses={404: "There is no such run."},
    )
)
async def list_versions(request: Request, service: Service) -> Response:
    """List versions."""
    limit = _LIMIT(request) or 1
    wanted = _Filter(request)
    feed = await feed_of(request, service)
    return await service.call(wanted.page, feed.state, limit, feed.age_s)


class _Filter:
    """Which versions a request asks for."""

    def __init__(self, request: Request) -> None:
        after = _AFTER(request)
        self._first = 0 if after is None else after + 1
        self._kind = _KIND(request)
        self._low, self._high = _MIN_STEP(request), _MAX_STEP(request)

    def page(self, state: RunState, limit: int, age_s: float) -> Rendered:
        """Return a page of them, oldest first: it ends early where many were looked at, or they say a lot."""
        page: list[VersionBody] = []
        last, nbytes = self._first - 1, 0
        following: int | None = None
        for looked, entry in enumerate(state.versions_since(self._first)):
            if looked == _LOOKED or nbytes > _PAGE_BYTES:
                following = last
                break
            last = entry.version
            if not self._fits(entry) or state.is_retired(entry.version):
                continue
            body = version_body(state, entry)
            if self._kind is not None and body.kind != self._kind:
                continue
            if len(page) == limit:
                following = page[-1].version
                break
            nbytes += len(canonical_json(body.metadata)) if body.metadata else 0
            page.append(body)
        return Rendered.of(
            VersionPage.model_construct(run=state.run, versions=tuple(page), next=following, age_s=round(age_s, 3))
        )

    def _fits(self, entry: VersionEntry) -> bool:
        return (self._low is None or self._low <= entry.step) and (self._high is None or entry.step <= self._high)


async def _show(feed: RunFeed, name: str) -> Response:
    found = _entry(feed.state, name)
    if found is None:
        await feed.refresh()
        found = _entry(feed.state, name)
    if found is None:
        raise NotFound(f"run {feed.run!r} has no version {name}; the newest is {len(feed.state.versions) - 1}")
    return Rendered.of(version_body(feed.state, found)).aged(feed.age_s)


def _entry(state: RunState, name: str) -> VersionEntry | None:
    kind, colon, step = name.partition(":")
    if colon:
        return state.by_step(int(step))
    return state.versions[int(kind)] if int(kind) < len(state.versions) else None


async def _newer(request: Request, service: Service, feed: RunFeed, after: int) -> bool:
    """Tell whether there is a version over ``after``, within the time that the request gives."""
    wait = _WAIT(request)
    if len(feed.state.versions) - 1 > after:
        return True
    if not wait or service.stopping:
        return False
    return await wait_for(request, service, feed, lambda state: len(state.versions) - 1 > after, wait)
