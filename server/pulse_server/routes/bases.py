"""Shared bases: a run is made to refer to one, and their files are read by runs that name them."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Annotated, Final

from fastapi import Request
from fastapi.responses import Response

from pulse_registry.bases.sharing import share
from pulse_registry.errors import NotFound
from pulse_schemas.api import BaseBody, BaseRequest
from pulse_server.routes import examples
from pulse_server.routes.bases_named import check_named
from pulse_server.routes.dependencies import PublishRun, ReadRun, RunRequest
from pulse_server.routes.objects import ANSWERS_OF_READ, BYTES, send_object
from pulse_server.routes.operation import answer, operations, problem
from pulse_server.routes.params import BaseFile, BaseName, base_file_key, document
from pulse_server.transport.answers import Rendered

router = operations("bases")
_COPIES_S: Final = 5.0
"""For so long a request goes on to the next file; clients ask again while some are missing."""


@router.post(
    "/v1/runs/{run}/bases",
    summary="Share a version of another run",
    description=(
        "The run may then name the base in its records. The token must be allowed to read the other run. Files that "
        "are not there are copied, for some seconds: ask again while some are missing."
    ),
    response_model=BaseBody,
    responses={
        200: answer("The run refers to the base.", BaseBody(base=examples.BASE, missing=0)),
        404: problem("There is no such run or version, or it has no keyframe."),
        410: problem("The version was retired."),
    },
)
async def share_base(
    run: PublishRun, wanted: Annotated[BaseRequest, document(BaseRequest(run=examples.RUN, version=42))]
) -> Response:
    """Make a run refer to a base."""
    service, lender = run.service, wanted.run
    run.who.check("read", lender)
    feed = service.feeds.live(lender) or await service.feeds.open(lender)
    if wanted.version >= len(feed.state.versions) or feed.state.keyframe(wanted.version) is None:
        await feed.refresh()
    entry, keyframe = feed.state.version(wanted.version), feed.state.keyframe(wanted.version)
    if keyframe is None:
        raise NotFound(f"version {wanted.version} of run {lender!r} has no keyframe to share: attach one first")
    spent = await _spent(run)
    until = time.monotonic() + _COPIES_S
    shared = await service.call(
        lambda: share(
            service.home_of(run.name),
            run.name,
            service.store_of(lender),
            entry.layout,
            entry.digest,
            keyframe,
            spent,
            enough=lambda: time.monotonic() > until,
        )
    )
    return Rendered.of(BaseBody(base=shared.base, missing=shared.missing))


async def _spent(run: RunRequest) -> Collection[str]:
    """Return the bases that the run's log has retired, as far as is known: it names none of them again."""
    try:
        feed = await run.feed(remember=False)
    except NotFound:  # its log begins later
        return ()
    return feed.state.spent_bases


@router.head(
    "/v1/runs/{run}/_bases/{base}/{file}",
    summary="Read the size of a shared base's file",
    response_class=Response,
    responses={
        200: answer(
            "The file exists, and the run names the base.",
            media_type=BYTES,
            headers={"Content-Length": "the size of the file", "Accept-Ranges": "bytes"},
        ),
        404: problem("The run names no such file."),
    },
)
async def head_base(run: ReadRun, base: BaseName, file: BaseFile) -> Response:
    """Tell the size of a base's file."""
    key = base_file_key(base, file)
    await check_named(run, [key])
    size = await run.service.size(run.name, key)
    return Response(headers={"content-length": str(size), "accept-ranges": "bytes"}, media_type=BYTES)


@router.get(
    "/v1/runs/{run}/_bases/{base}/{file}",
    summary="Read a shared base's file",
    response_class=Response,
    responses=ANSWERS_OF_READ,
)
async def read_base(request: Request, run: ReadRun, base: BaseName, file: BaseFile) -> Response:
    """Read a file of a base that the run names, or be told where to."""
    key = base_file_key(base, file)
    await check_named(run, [key])
    return await send_object(request, run, key)
