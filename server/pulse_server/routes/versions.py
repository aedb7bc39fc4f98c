"""Versions: all of them by page, one of them, and the newest, for which a request can wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from fastapi import Query
from fastapi.responses import Response

from pulse_registry.errors import NotFound
from pulse_registry.log import RunState
from pulse_schemas import VersionEntry, canonical_json
from pulse_schemas.api import VersionBody, VersionPage
from pulse_server.routes import examples
from pulse_server.routes.dependencies import ReadRun, RunRequest
from pulse_server.routes.operation import answer, hot, operations, problem
from pulse_server.routes.params import DECIMAL, Before, Wait, between, segment, waiting, whole
from pulse_server.runs.bodies import version_body
from pulse_server.runs.chain import versions_where
from pulse_server.runs.feed import RunFeed
from pulse_server.transport.answers import Rendered, no_content

router = operations("versions")
_STEP: Final = 2**63 - 1
_LOOKED: Final = 1_000
"""Versions that are looked at for one page, at least as many as it has."""
_PAGE_BYTES: Final = 1 << 20
"""Of metadata in one page, but for its last version's."""

VersionName = Annotated[
    str,
    segment(
        "`latest`, a number, or `step:` and the trainer's label",
        r"latest|0|[1-9][0-9]{0,11}|step:(0|-?[1-9][0-9]{0,18})",
        "latest",
    ),
]
Newer = Annotated[Before | None, whole("answer only with a version over this one; for `latest`", 41)]
WaitForNewer = Annotated[Wait | None, waiting("a version over `after`")]
After = Annotated[Before, whole("the versions over this one", 41)]
Limit = Annotated[int, between(1, 1000), DECIMAL, whole("how many at most", 100)]
Step = Annotated[int, between(-_STEP - 1, _STEP), DECIMAL]
Kind = Annotated[
    Literal["keyframe", "patch"] | None, Query(description="only versions that were committed as this kind")
]
MinStep = Annotated[Step | None, whole("only steps from this one on", 400)]
MaxStep = Annotated[Step | None, whole("only steps up to this one", 500)]


@router.get(
    "/v1/runs/{run}/versions/{version}",
    summary="Show one version, or wait for the next",
    description=("`latest?after=N&wait=S` answers as soon as there is a version over N."),
    response_model=VersionBody,
    responses={
        200: answer("The version.", examples.VERSION, headers={"Age": "seconds since the log was last looked at"}),
        204: answer("There is no version over `after` yet."),
        404: problem("There is no such run or version."),
        410: problem("The version was retired and deleted."),
    },
)
@hot
async def show_version(run: ReadRun, version: VersionName, after: Newer = None, wait: WaitForNewer = None) -> Response:
    """Show one version."""
    feed = await run.feed()
    if version != "latest":
        return await _show(feed, version)
    if after is not None and not await _newer(run, feed, after, wait):
        return no_content()
    if feed.latest is None:
        raise NotFound(f"run {feed.run!r} has no versions yet")
    return feed.latest.aged(feed.age_s)


@router.get(
    "/v1/runs/{run}/versions",
    summary="List versions, oldest first",
    response_model=VersionPage,
    responses={
        200: answer(
            "A page of versions, which may have fewer than `limit`, or none, where others follow. Retired ones are "
            "left out.",
            VersionPage(run=examples.RUN, versions=(examples.VERSION,), next=42, age_s=0.1),
        ),
        404: problem("There is no such run."),
    },
)
async def list_versions(
    run: ReadRun,
    after: After = -1,
    limit: Limit = 100,
    kind: Kind = None,
    min_step: MinStep = None,
    max_step: MaxStep = None,
) -> Response:
    """List versions."""
    wanted = _Filter(after + 1, kind, min_step, max_step)
    feed = await run.feed()
    return await run.service.render(wanted.page, feed.state, limit, feed.age_s)


@dataclass(frozen=True, slots=True)
class _Filter:
    """Which versions a request asks for."""

    first: int
    kind: Literal["keyframe", "patch"] | None
    low: int | None
    high: int | None

    def page(self, state: RunState, limit: int, age_s: float) -> Rendered:
        """Return a page of them, oldest first: it ends early where many were looked at, or they say a lot."""
        page: list[VersionBody] = []
        last, nbytes = self.first - 1, 0
        following: int | None = None
        for looked, number in enumerate(versions_where(state, self.first, self.kind, self.low, self.high)):
            if looked == _LOOKED or len(page) == limit or nbytes > _PAGE_BYTES:
                following = last
                break
            last = number
            if state.is_retired(number):
                continue
            body = version_body(state, state.version(number))
            nbytes += len(canonical_json(body.metadata)) if body.metadata else 0
            page.append(body)
        return Rendered.of(
            VersionPage.model_construct(run=state.run, versions=tuple(page), next=following, age_s=round(age_s, 3))
        )


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


async def _newer(run: RunRequest, feed: RunFeed, after: int, wait: int | None) -> bool:
    """Tell whether there is a version over ``after``, within the time that the request gives."""
    if len(feed.state.versions) - 1 > after:
        return True
    if not wait or run.service.stopping:
        return False
    return await run.wait_for(feed, lambda state: len(state.versions) - 1 > after, wait)
