"""Runs: those that the token may read, one of them, and the chain of its objects; and the token itself."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from fastapi.responses import Response

from pulse_registry.errors import NotFound, PulseError
from pulse_registry.log import RunState
from pulse_registry.log.names import GIVEN_RUN_NAME, fold
from pulse_schemas import canonical_json
from pulse_schemas.api import ChainBody, KeyframeMark, PatchMark, RunBody, RunPage, TokenBody
from pulse_server.routes import examples
from pulse_server.routes.dependencies import AnyToken, ReadRun, ReadToken, TheService
from pulse_server.routes.operation import answer, operations, problem
from pulse_server.routes.params import DECIMAL, between, text, whole
from pulse_server.runs.bodies import chain_body, run_body
from pulse_server.scheduling.turns import CALLER
from pulse_server.service import Service
from pulse_server.transport.answers import Rendered

router = operations("runs")
After = Annotated[str | None, text("the runs whose names follow this one", GIVEN_RUN_NAME.pattern, "math-1b")]
Limit = Annotated[int, between(1, 200), DECIMAL, whole("how many at most", 50)]
_PAGE_BYTES: Final = 8 << 20
"""Of metadata in one page, but for its last run's."""
_RUN: Final = RunBody(
    run=examples.RUN, seq=43, epoch=1, versions=43, latest=examples.VERSION, full_nbytes=15_231_233_024
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
    names = [name for name in await service.runs() if name > fold(after or "") and who.may("read", name)]
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


@router.get(
    "/v1/runs/{run}",
    summary="Show a run",
    response_model=RunBody,
    responses={200: answer("The run.", _RUN), 404: problem("There is no such run.")},
)
async def show_run(run: ReadRun) -> Response:
    """Show a run."""
    feed = await run.feed()
    nbytes = await run.service.sizes.newest(feed.state)
    return Rendered.of(run_body(feed.state, nbytes)).aged(feed.age_s)


@router.get(
    "/v1/runs/{run}/chain",
    summary="Show a run's live objects",
    response_model=ChainBody,
    responses={
        200: answer(
            "The live objects of a run: which versions each joins, and how many bytes it has, in the order of the log.",
            ChainBody(
                run=examples.RUN,
                keyframes=(KeyframeMark(version=0, nbytes=15_231_300_000),),
                patches=(PatchMark(base=0, target=1, nbytes=81_000_000),),
            ),
        ),
        404: problem("There is no such run."),
    },
)
async def show_chain(run: ReadRun) -> Response:
    """Show a run's chain."""
    feed = await run.feed()
    kept = feed.cache.get("chain")
    if isinstance(kept, Rendered):
        return kept.aged(feed.age_s)
    state, mine = feed.state, ("chain", feed.state.last, CALLER.get())  # nobody waits in another's line for it
    task = feed.reading.get(mine)
    if task is None:
        task = feed.reading[mine] = asyncio.create_task(run.service.call(_chain, state))
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
    return run_body(feed.state, await service.sizes.newest(feed.state))
