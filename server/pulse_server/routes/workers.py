"""Workers: what they report of themselves, and the list of it."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final

from fastapi.responses import Response

from pulse_registry.errors import StoreUnavailable
from pulse_schemas.api import WorkerList, WorkerReport
from pulse_server.routes import examples
from pulse_server.routes.dependencies import ReadRun
from pulse_server.routes.operation import answer, body_limit, operations, problem
from pulse_server.routes.params import Number, document, segment, whole
from pulse_server.runs.listing import Listing
from pulse_server.transport.answers import Rendered, no_content

router = operations("workers")
Worker = Annotated[str, segment("a worker's own name", "[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", examples.WORKER)]
MinVersion = Annotated[Number | None, whole("only workers that serve this version or a newer one", 41)]
_REPORT: Final = WorkerReport(
    version=41,
    digest=examples.DIGEST,
    phases=examples.REPORTED.phases,
    timeline=examples.TIMELINE,
    nbytes=examples.REPORTED.nbytes,
)


@router.put(
    "/v1/runs/{run}/workers/{worker}",
    status_code=204,
    summary="Report which version a worker serves",
    description=(
        "The worker is the token's: another token's worker of the same name is another worker. Of more workers than a "
        "token may have, those that reported last count."
    ),
    response_class=Response,
    responses={204: answer("The report was accepted."), 404: problem("There is no such run.")},
)
@body_limit(32 << 10)  # of 16 phases, twice, and 64 keys
async def report(run: ReadRun, worker: Worker, told: Annotated[WorkerReport, document(_REPORT)]) -> Response:
    """Take a worker's report."""
    feed = await run.feed()
    run.service.workers.take(feed, run.who, worker, told)
    return no_content()


@router.delete(
    "/v1/runs/{run}/workers/{worker}",
    status_code=204,
    summary="Remove a worker from the list",
    description=("A worker of this token. It is listed again when it reports again."),
    response_class=Response,
    responses={204: answer("The worker is not listed."), 404: problem("There is no such run.")},
)
async def forget(run: ReadRun, worker: Worker) -> Response:
    """Forget a worker."""
    run.service.workers.forget(await run.feed(), run.who, worker)
    return no_content()


@router.get(
    "/v1/runs/{run}/workers",
    summary="List workers that reported of late",
    description=(
        "A report to another replica shows within seconds. With `min_version`, those that may answer a request that "
        "needs that version: their cells are those of it or of a newer one, as they told of late."
    ),
    response_model=WorkerList,
    responses={
        200: answer("The workers, by name.", WorkerList(run=examples.RUN, workers=(examples.REPORTED,))),
        404: problem("There is no such run."),
    },
)
async def list_workers(run: ReadRun, min_version: MinVersion = None) -> Response:
    """List workers."""
    feed = await run.feed()
    with suppress(StoreUnavailable):  # then it is what this replica knows
        await run.service.workers.gather(feed)
    listing = await run.service.workers.listing(feed)
    return (await run.service.render(_rendered, listing, min_version)).aged(feed.age_s)


def _rendered(listing: Listing, min_version: int | None) -> Rendered:
    return Rendered(listing.body(min_version))
