"""Runs: those that the token may read, one of them, and the chain of its objects; and the token itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from fastapi import Request
from fastapi.responses import Response

from pulse_registry.errors import NotFound, PulseError
from pulse_registry.log import RunState
from pulse_registry.log.names import GIVEN_RUN_NAME, fold
from pulse_schemas import canonical_json
from pulse_schemas.api import ChainBody, KeyframeMark, PatchMark, RunBody, RunPage, TokenBody
from pulse_server.auth.access import Guard, Principal
from pulse_server.routes import examples
from pulse_server.routes.common import RUN, feed_of
from pulse_server.routes.operations import Operation, Operations, Says
from pulse_server.routes.params import Parameter, Whole
from pulse_server.runs.bodies import chain_body, run_body
from pulse_server.scheduling.turns import CALLER
from pulse_server.transport.answers import Rendered

if TYPE_CHECKING:
    from pulse_server.service import Service

OPERATIONS: Final = Operations("runs")
_AFTER: Final = Parameter(
    "after", "the runs whose names follow this one", GIVEN_RUN_NAME, "math-1b", "query", required=False, stored=fold
)
_PAGE_BYTES: Final = 8 << 20
"""Of metadata in one page, but for its last run's."""
_LIMIT: Final = Whole("limit", "how many at most", 50, 50, 1, 200)
_RUN: Final = RunBody(
    run=examples.RUN, seq=43, epoch=1, versions=43, latest=examples.VERSION, full_nbytes=15_231_233_024
)


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/token",
        "any",
        "Show what the token allows",
        {
            200: Says(
                "The token's name, scopes (with those that are included) and runs.",
                TokenBody(name="rollout", scopes=("read",), runs=("math-*",), expires_at=None),
            )
        },
    )
)
async def show_token(request: Request, service: Service) -> Response:
    """Show what the caller's token allows."""
    who = _principal(request)
    return Rendered.of(TokenBody(name=who.name, scopes=who.scopes, runs=who.runs, expires_at=who.expires_at))


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/runs",
        "read",
        "List runs",
        {200: Says("A page of the runs that the token may read, by name.", RunPage(runs=(_RUN,), next=None))},
        "A new run shows within seconds.",
        (_AFTER, _LIMIT),
    )
)
async def list_runs(request: Request, service: Service) -> Response:
    """List runs."""
    after, limit, who = _AFTER(request), _LIMIT(request) or 1, _principal(request)
    names = [name for name in await service.runs() if name > after and who.may("read", name)]
    bodies = await asyncio.gather(*(_listed(service, name) for name in names[:limit]))
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
    return Rendered.of(RunPage.model_construct(runs=tuple(page), next=more))


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/runs/{run}",
        "read",
        "Show a run",
        {200: Says("The run.", _RUN)},
        parameters=(RUN,),
        refuses={404: "There is no such run."},
    )
)
async def show_run(request: Request, service: Service) -> Response:
    """Show a run."""
    feed = await feed_of(request, service)
    nbytes = await service.full_nbytes(feed)
    return Rendered.of(run_body(feed.state, nbytes)).aged(feed.age_s)


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/runs/{run}/chain",
        "read",
        "Show a run's live objects",
        {
            200: Says(
                "What leads where, and what it costs, in the order of the log.",
                ChainBody(
                    run=examples.RUN,
                    keyframes=(KeyframeMark(version=0, nbytes=15_231_300_000),),
                    patches=(PatchMark(base=0, target=1, nbytes=81_000_000),),
                ),
            )
        },
        parameters=(RUN,),
        refuses={404: "There is no such run."},
    )
)
async def show_chain(request: Request, service: Service) -> Response:
    """Show a run's chain."""
    feed = await feed_of(request, service)
    kept = feed.cache.get("chain")
    if isinstance(kept, Rendered):
        return kept.aged(feed.age_s)
    state, mine = feed.state, ("chain", feed.state.last, CALLER.get())  # nobody waits in another's line for it
    task = feed.reading.get(mine)
    if task is None:
        task = feed.reading[mine] = asyncio.create_task(service.call(_chain, state))
        task.add_done_callback(lambda _: feed.reading.pop(mine, None))
    chain = await asyncio.shield(task)
    if feed.state is state:
        feed.cache["chain"] = chain
    return chain.aged(feed.age_s)


def _chain(state: RunState) -> Rendered:
    return Rendered.of(chain_body(state))


async def _listed(service: Service, run: str) -> RunBody | None:
    """Return a run as the list shows it, without following it; None if it is a run no more, or can't be read."""
    try:
        feed = await service.feeds.open(run, follow=False)
    except NotFound:
        return None
    except PulseError:
        return RunBody(run=run, seq=-1, epoch=0, versions=0, latest=None, full_nbytes=None)
    return run_body(feed.state, await service.full_nbytes(feed))


def _principal(request: Request) -> Principal:
    guard: Guard = request.app.state.guard
    return guard.identify(request.scope)
