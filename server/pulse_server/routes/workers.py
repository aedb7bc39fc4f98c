"""Workers: what they report of themselves, and the list of it."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fastapi import Request
from fastapi.responses import Response

from pulse_registry.errors import StoreUnavailable
from pulse_schemas.api import WorkerList, WorkerReport
from pulse_server.auth.access import requires
from pulse_server.routes import examples
from pulse_server.routes.common import RUN, feed_of
from pulse_server.routes.operations import Operation, Operations, Says
from pulse_server.routes.params import Parameter, body_of
from pulse_server.transport.answers import Rendered, no_content

if TYPE_CHECKING:
    from pulse_server.service import Service

OPERATIONS: Final = Operations("workers")
_WORKER: Final = Parameter(
    "worker", "a worker's own name", re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII), examples.WORKER
)


@OPERATIONS.add(
    Operation(
        "PUT",
        "/v1/runs/{run}/workers/{worker}",
        "read",
        "Report which version a worker serves",
        {204: Says("Taken.")},
        "The worker is the token's: another token's worker of the same name is another worker. Of more workers than a "
        "token may have, those that reported last count.",
        parameters=(RUN, _WORKER),
        body=WorkerReport(
            version=41,
            digest=examples.DIGEST,
            phases=examples.REPORTED.phases,
            timeline=examples.TIMELINE,
            nbytes=examples.REPORTED.nbytes,
        ),
        max_body=32 << 10,  # of 16 phases, twice, and 64 keys
        refuses={404: "There is no such run."},
    )
)
async def report(request: Request, service: Service) -> Response:
    """Take a worker's report."""
    worker, told = _WORKER(request), await body_of(request, WorkerReport)
    feed = await feed_of(request, service)
    service.take_report(feed, requires("read").check(request), worker, told)
    return no_content()


@OPERATIONS.add(
    Operation(
        "DELETE",
        "/v1/runs/{run}/workers/{worker}",
        "read",
        "Say that a worker is none any more",
        {204: Says("It is not listed, or not any more.")},
        "A worker of this token; it is listed again once it reports again.",
        (RUN, _WORKER),
        refuses={404: "There is no such run."},
    )
)
async def forget(request: Request, service: Service) -> Response:
    """Forget a worker."""
    worker = _WORKER(request)
    service.forget_worker(await feed_of(request, service), requires("read").check(request), worker)
    return no_content()


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/runs/{run}/workers",
        "read",
        "List workers that reported of late",
        {200: Says("The workers, by name.", WorkerList(run=examples.RUN, workers=(examples.REPORTED,)))},
        "A report to another replica shows within seconds.",
        (RUN,),
        refuses={404: "There is no such run."},
    )
)
async def list_workers(request: Request, service: Service) -> Response:
    """List workers."""
    feed = await feed_of(request, service)
    with suppress(StoreUnavailable):  # then it is what this replica knows
        await service.gather_reports(feed)
    return Rendered(await service.workers_of(feed)).aged(feed.age_s)
