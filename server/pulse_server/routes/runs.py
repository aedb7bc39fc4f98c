"""Runs: those that the token may read, one of them, and the chain of its objects; and the token itself."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Final

from fastapi.responses import Response

from pulse_registry.errors import NotFound, PulseError
from pulse_registry.log import RunState
from pulse_registry.log.names import GIVEN_RUN_NAME, fold
from pulse_schemas import canonical_json
from pulse_schemas.api import ChainBody, ChainTotals, KeyframeMark, PatchMark, RunBody, RunPage, TokenBody
from pulse_server.routes import examples
from pulse_server.routes.dependencies import AnyToken, ReadRun, ReadToken, TheService
from pulse_server.routes.operation import answer, operations, problem
from pulse_server.routes.params import DECIMAL, Before, Number, between, text, whole
from pulse_server.runs.bodies import run_body, unread_body
from pulse_server.runs.chain import chain_body
from pulse_server.runs.feed import RunFeed
from pulse_server.scheduling.turns import CALLER
from pulse_server.service import Service
from pulse_server.transport.answers import Rendered

router = operations("runs")
After = Annotated[str | None, text("the runs whose names follow this one", GIVEN_RUN_NAME.pattern, "math-1b")]
Limit = Annotated[int, between(1, 200), DECIMAL, whole("how many at most", 50)]
AfterVersion = Annotated[Before, whole("the objects that lead to a version over this one", 41)]
Until = Annotated[Number | None, whole("of these, those that begin at this version, or at an earlier one", 99)]
Objects = Annotated[
    int, between(1, 10_000), DECIMAL, whole("how many at most, but for all that lead to the last version", 1_000)
]
_PAGE_BYTES: Final = 1 << 20
"""Of metadata in one page, but for its last run's."""
_RUN: Final = RunBody(
    run=examples.RUN,
    seq=43,
    epoch=1,
    versions=43,
    latest=examples.VERSION,
    full_nbytes=15_231_233_024,
    summary=examples.SUMMARY,
)


@router.get(
    "/v1/token",
    summary="Show what the token allows",
    response_model=TokenBody,
    responses={
        200: answer(
            "The token's name, scopes (with those that are included) and runs.",
            TokenBody(name="rollout", scopes=("read",), runs=("math-*",), expires_at=examples.WHEN),
        )
    },
)
async def show_token(who: AnyToken) -> Response:
    """Show what the caller's token allows."""
    return Rendered.of(TokenBody(name=who.name, scopes=who.scopes, runs=who.runs, expires_at=who.expires_at))


@router.get(
    "/v1/runs",
    summary="List runs",
    description=("A new run shows within seconds."),
    response_model=RunPage,
    responses={
        200: answer("A page of the runs that the token may read, by name.", RunPage(runs=(_RUN,), next=examples.RUN))
    },
)
async def list_runs(service: TheService, who: ReadToken, after: After = None, limit: Limit = 50) -> Response:
    """List runs."""
    known = await service.runs()
    later = islice(known, bisect_right(known, fold(after or "")), None)
    names = [*islice((name for name in later if who.may("read", name)), limit + 1)]
    listed = await asyncio.gather(*(_listed(service, name) for name in names[:limit]))
    read = iter(await _bodies(service, [found for found in listed if isinstance(found, RunFeed)]))
    bodies = [next(read) if isinstance(found, RunFeed) else found for found in listed]
    page: list[RunBody] = []
    more = names[limit - 1] if len(names) > limit else None
    nbytes = 0
    for number, body in enumerate(bodies):
        if nbytes > _PAGE_BYTES:
            more = names[number - 1]
            break
        if body is not None:
            page.append(body)
            told = body.latest.metadata if body.latest is not None else None
            nbytes += len(canonical_json(told)) if told else 0
    return await service.render(Rendered.of, RunPage.model_construct(runs=tuple(page), next=more))


@router.get(
    "/v1/runs/{run}",
    summary="Show a run",
    response_model=RunBody,
    responses={200: answer("The run.", _RUN), 404: problem("There is no such run.")},
)
async def show_run(run: ReadRun) -> Response:
    """Show a run."""
    feed = await run.feed()
    (body,) = await _bodies(run.service, [feed])
    return Rendered.of(body).aged(feed.age_s)


@router.get(
    "/v1/runs/{run}/chain",
    summary="Show a run's live objects",
    response_model=ChainBody,
    responses={
        200: answer(
            "A page of the live objects of a run: which versions each joins, and how many bytes it has, by the version "
            "that each leads to.",
            ChainBody(
                run=examples.RUN,
                keyframes=(KeyframeMark(version=0, nbytes=15_231_300_000),),
                patches=(PatchMark(base=0, target=1, nbytes=81_000_000),),
                next=1,
                totals=ChainTotals(keyframes=1, patches=42, merged=0, longest=1, nbytes=18_633_300_000),
            ),
        ),
        404: problem("There is no such run."),
    },
)
async def show_chain(run: ReadRun, after: AfterVersion = -1, until: Until = None, limit: Objects = 10_000) -> Response:
    """Show a run's chain."""
    feed, pages = await run.feed(), run.service.pages
    state = feed.state
    key = ("chain", feed.run, state.last, after, until, limit)
    page = pages.get(key)
    if page is None:
        mine = (*key, CALLER.get())  # nobody waits in another's line for it
        task = feed.reading.get(mine)
        if task is None:
            task = feed.reading[mine] = asyncio.create_task(run.service.render(_chain, state, after, until, limit))
            task.add_done_callback(lambda _: feed.reading.pop(mine, None))
        page = await asyncio.shield(task)
        pages.keep(key, page, len(page.body))
    return page.aged(feed.age_s)


def _chain(state: RunState, after: int, until: int | None, limit: int) -> Rendered:
    return Rendered.of(chain_body(state, after, until, limit))


async def _listed(service: Service, run: str) -> RunBody | RunFeed | None:
    """Return the feed of a run as the list shows it, without following it; None if it is a run no more."""
    try:
        return await service.feeds.open(run, follow=False)
    except NotFound:
        return None
    except PulseError:
        return unread_body(run)


async def _bodies(service: Service, feeds: Sequence[RunFeed]) -> list[RunBody]:
    """Return runs as lists show them."""
    states = [feed.state for feed in feeds]
    sizes = await asyncio.gather(*map(service.sizes.newest, states))
    summaries = await service.workers.summaries(feeds)
    return [*map(run_body, states, sizes, summaries)]
