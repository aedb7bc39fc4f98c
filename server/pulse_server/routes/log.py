"""The log: records as they are stored, the next one to wait for, and the one that a writer appends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Any, Final

from blake3 import blake3
from fastapi import Request
from fastapi.responses import Response

from pulse_registry.errors import AccessDenied, InvalidArgument, NotFound, PulseError
from pulse_registry.format import keys
from pulse_registry.log import RunState
from pulse_registry.log.documents import LAYOUT, RECORD
from pulse_registry.store import create
from pulse_schemas import DeleteRecord, MoveRecord, RetireRecord, SchemaError, unseal_record
from pulse_schemas.api import Appended, CountersignatureList, LogPage, SnapshotList, UrlBody
from pulse_server.routes import examples
from pulse_server.routes.dependencies import PublishRun, ReadRun, RunRequest
from pulse_server.routes.operation import Responses, answer, body_limit, operations, problem, raw_body
from pulse_server.routes.params import DECIMAL, LayoutId, Number, Seq, Wait, between, waiting, whole
from pulse_server.runs.log_feed import LogFeed
from pulse_server.scheduling.turns import CALLER
from pulse_server.service import Service
from pulse_server.transport.answers import Rendered, no_content

router = operations("log")
Since = Annotated[Number, whole("the first record", 43)]
Limit = Annotated[int, between(1, 1000), DECIMAL, whole("how many at most", 100)]
WaitForRecord = Annotated[Wait | None, waiting("record `since`")]
_MOST_LISTED: Final = 1 << 20
_MOST_SNAPSHOTS: Final = 10_000
"""The newest of a listing, which might have no end: readers look at eight."""
_MOST_COUNTERSIGNED: Final = 250_000
"""The newest as well: as many as a list of 4 MiB tells of, in numbers of up to twelve digits."""
_FEW: Final = 4
"""Records of a page that tells where to read the newest patch, too."""
_READ_TOGETHER: Final = 32
"""Records that are in memory together though a page may end before them."""
_PAGE_BYTES: Final = 8 << 20
"""Of records in one page, but for its first."""

_MOST_NAMED: Final = 8_192
_MOST_VALUES: Final = 20_000
"""Of a record: objects and lists in it, and values. The record of a keyframe of 2 TB has 1,700 shards of three fields,
the longest `retire` record 2,000 values. Beside what reads far more, no other thread would run."""

_TAKES_AWAY: Final = {
    b'"kind":"retire"': RetireRecord,
    b'"kind":"delete"': DeleteRecord,
    b'"kind":"move"': MoveRecord,
}
"""The records that only an admin may append, by what is in their bytes, and may be in another one's metadata."""

SEALED_ANSWER: Final[Responses] = {200: answer("The sealed document, as stored.", examples.SEALED)}


@router.get(
    "/v1/runs/{run}/log",
    summary="Read records, or wait for the next",
    response_model=LogPage,
    responses={
        200: answer(
            "Records from `since` on; none where there are none yet, also after `wait`.",
            LogPage(
                run=examples.RUN,
                since=43,
                records=(examples.SEALED,),
                urls=UrlBody(urls={examples.PATCH: examples.SIGNED}, expires_at=examples.WHEN),
            ),
        ),
        404: problem("There is no such run."),
    },
)
async def read_log(run: ReadRun, since: Since = 0, limit: Limit = 100, wait: WaitForRecord = None) -> Response:
    """Read records."""
    feed = await run.feed(remember=False)  # a writer may have begun the run at another replica
    if since > feed.state.seq:
        if not wait:
            await feed.refresh()
        elif not run.service.stopping:
            await run.wait_for(feed, lambda state: state.seq >= since, wait)
    return (await page_of(run.service, feed, since, limit)).aged(feed.age_s)


@router.post(
    "/v1/runs/{run}/log",
    status_code=201,
    summary="Append a record",
    description=(
        "The writer makes the record, and seals it, as it would for a bucket. The service checks its seal, every rule "
        "of the log, and that each object it names is there with its size. `retire`, `delete` and `move` records need "
        "an admin's token."
    ),
    response_model=Appended,
    responses={
        201: answer("The record is in the log; also if it was before.", Appended(run=examples.RUN, seq=43)),
        400: problem("The body is not a sealed record, breaks a rule, or names a missing object: nothing was written."),
        409: problem(
            "Another record has the number (AlreadyExists), it comes too early (Conflict), a newer writer began "
            "its term, or the run has moved to another root (Fenced)."
        ),
    },
    openapi_extra=raw_body(),
)
@body_limit(8 << 20)
async def append(request: Request, run: PublishRun) -> Response:
    """Append a record."""
    service, sealed = run.service, await request.body()
    try:
        _check_parts(run.name, sealed)
        await _check_kind(run, sealed)
        with service.feeds.hold(run.name) as feed:
            record = await feed.append(sealed)
    except PulseError as error:
        service.metrics.commits.labels(type(error).__name__).inc()
        raise
    service.metrics.commits.labels("accepted").inc()
    return Rendered.of(Appended(run=run.name, seq=record.seq), HTTPStatus.CREATED)


@router.get(
    "/v1/runs/{run}/log/{seq}",
    summary="Read one record",
    response_class=Response,
    responses={**SEALED_ANSWER, 404: problem("There is no such run or record.")},
)
async def read_record(run: ReadRun, seq: Seq) -> Response:
    """Read one record."""
    number = int(seq)
    feed = await run.feed(remember=False)  # a writer may have begun the run at another replica
    if number > feed.state.seq:
        await feed.refresh()
    try:
        if number == feed.state.seq + 1:
            raise NotFound  # it was just looked for
        # One further on is there where a record before it is missing, which who has seen it wants to know.
        return await document(run, keys.record_key(number))
    except NotFound as error:
        raise NotFound(f"run {feed.run!r} has no record {seq}; the newest is {feed.state.seq}") from error


@router.get(
    "/v1/runs/{run}/log/{seq}/countersignature",
    summary="Read the countersignature of a record",
    description=("For readers that don't trust the record's own signature. The service does not verify it."),
    response_class=Response,
    responses={**SEALED_ANSWER, 404: problem("There is no such run or record, or nobody has countersigned it.")},
)
async def read_countersignature(run: ReadRun, seq: Seq) -> Response:
    """Read the countersignature of a record."""
    return await document(run, keys.countersignature_key(int(seq)))


@router.get(
    "/v1/runs/{run}/countersignatures",
    summary="List countersigned records",
    response_model=CountersignatureList,
    responses={
        200: answer(
            "The numbers of the records, ascending; none for a run that does not exist.",
            CountersignatureList(countersignatures=(7,)),
        )
    },
)
async def list_countersignatures(run: ReadRun) -> Response:
    """List countersigned records."""
    found = await _listed(run, "", keys.COUNTERSIGNED, keys.countersigned_seq, _MOST_COUNTERSIGNED)
    return Rendered.of(CountersignatureList(countersignatures=found))


@router.get(
    "/v1/runs/{run}/head",
    summary="Read the hint",
    response_class=Response,
    responses={**SEALED_ANSWER, 404: problem("The run has no head.")},
)
async def read_head(run: ReadRun) -> Response:
    """Read the hint that says which snapshot to open the run from."""
    return await document(run, keys.HEAD)


@router.get(
    "/v1/runs/{run}/snapshots",
    summary="List snapshots of the log",
    response_model=SnapshotList,
    responses={
        200: answer(
            "The numbers of the snapshots, ascending; none for a run that does not exist.",
            SnapshotList(snapshots=(63,)),
        )
    },
)
async def list_snapshots(run: ReadRun) -> Response:
    """List snapshots."""
    return await snapshots_of(run)


@router.get(
    "/v1/runs/{run}/snapshots/{seq}",
    summary="Read one snapshot",
    response_class=Response,
    responses={**SEALED_ANSWER, 404: problem("There is no such snapshot.")},
)
async def read_snapshot(run: ReadRun, seq: Seq) -> Response:
    """Read one snapshot."""
    return await document(run, keys.snapshot_key(int(seq)))


@router.get(
    "/v1/runs/{run}/layouts/{id}",
    summary="Read a layout",
    response_class=Response,
    responses={
        200: answer("The layout, as stored.", '{"format":"pulse-layout/1","tensors":[...],"tied":{}}'),
        404: problem("There is no such layout."),
    },
)
async def read_layout(run: ReadRun, layout_id: LayoutId) -> Response:
    """Read a layout."""
    return await document(run, keys.layout_key(layout_id))


@router.put(
    "/v1/runs/{run}/layouts/{id}",
    status_code=201,
    summary="Store a layout",
    response_class=Response,
    responses={
        201: answer("The layout is stored; also if it was before."),
        400: problem("The body is not a layout, or does not hash to its id."),
    },
    openapi_extra=raw_body(),
)
@body_limit(None)
async def store_layout(request: Request, run: PublishRun, layout_id: LayoutId) -> Response:
    """Store a layout."""
    service, name, data = run.service, run.name, await request.body()
    if len(data) > LAYOUT:
        raise InvalidArgument(f"run {name!r}: a layout has at most {LAYOUT:,} bytes, and this {len(data):,}")
    hashed = await service.call(lambda: blake3(data).hexdigest())
    if hashed != layout_id:
        raise InvalidArgument(f"run {name!r}: the layout hashes to {hashed}, not to {layout_id}")
    try:
        await service.sizes.nbytes_of(data)
    except SchemaError as error:
        raise InvalidArgument(f"run {name!r}: this is no layout: {error}") from error
    await service.call(create, service.store_of(name), keys.layout_key(layout_id), data)
    return no_content(HTTPStatus.CREATED)


def _check_parts(run: str, sealed: bytes) -> None:
    """Check that a record does not have too many parts, before it is parsed; what is in its texts is counted, too."""
    if sealed.count(b"{") + sealed.count(b"[") > _MOST_NAMED or sealed.count(b",") > _MOST_VALUES:
        raise InvalidArgument(
            f"run {run!r}: a record that goes through the service has {_MOST_NAMED:,} objects and lists, and "
            f"{_MOST_VALUES:,} values, at most: name fewer objects or versions in one, or say less in its metadata"
        )


async def _check_kind(run: RunRequest, sealed: bytes) -> None:
    """Check that whoever appends a record that takes something away is an admin; what is no record is not looked at."""
    kinds = tuple(kind for mark, kind in _TAKES_AWAY.items() if mark in sealed)
    if not kinds or run.who.may("admin", run.name):
        return
    with suppress(SchemaError):
        record = await run.service.call(unseal_record, sealed)
        if isinstance(record, kinds):
            raise AccessDenied(f"run {run.name!r}: a {record.kind} record needs a token of scope 'admin'")


async def page_of(service: Service, feed: LogFeed[Any, Any], since: int, limit: int, folder: str = "") -> Rendered:
    """Return a page of records; all who ask for the same one of the same state share it.

    ``folder``, with a slash, is where the log lies below the run; "" for the run's own.
    """
    until = min(feed.state.seq + 1, since + limit)
    key = (f"{folder}log", feed.run, feed.state.last, since, until)
    page = service.pages.get(key)
    if page is None:
        mine = (*key, CALLER.get())  # nobody waits in another's line for it
        task = feed.reading.get(mine)
        if task is None:
            task = feed.reading[mine] = asyncio.create_task(_read_page(service, feed, folder, since, until))
            task.add_done_callback(lambda _: feed.reading.pop(mine, None))
        page = await asyncio.shield(task)
        service.pages.keep(key, page, len(page.body))
    return page


async def _read_page(service: Service, feed: LogFeed[Any, Any], folder: str, since: int, until: int) -> Rendered:
    run, records = feed.run, list[str]()
    newest = _newest_patch(feed.state) if 0 < until - since <= _FEW and until > feed.state.seq else None
    nbytes, at = 0, since
    while at < until and nbytes <= _PAGE_BYTES:
        for sealed in await _read_records(service, f"{run}/{folder}", at, min(until, at + _READ_TOGETHER)):
            nbytes += len(sealed)
            if nbytes <= _PAGE_BYTES or not records:
                records.append(sealed.decode())
        at += _READ_TOGETHER
    urls = None if newest is None else await _urls_of(service, run, newest)
    page = LogPage.model_construct(run=run, since=since, records=tuple(records), urls=urls)
    return await service.render(Rendered.of, page)


def _newest_patch(state: object) -> str | None:
    """Return the key of the patch by which a run's newest version was pushed; None if there is none."""
    if not isinstance(state, RunState) or state.latest is None:
        return None
    version = state.latest.version
    return next((ref.object.key for ref in state.patches_into(version) if ref.base == version - 1), None)


async def _urls_of(service: Service, run: str, key: str) -> UrlBody | None:
    """Return where to read an object; None where it can't be told: whoever asks for it is told why."""
    try:
        urls = await service.urls_of(run, [key])
    except (AccessDenied, InvalidArgument):
        return None
    return UrlBody.model_construct(urls=urls.by_key, expires_at=urls.expires_at)


async def _read_records(service: Service, below: str, since: int, until: int) -> list[bytes]:
    wanted = [f"{below}{keys.record_key(seq)}" for seq in range(since, until)]
    found = [known for key in wanted if (known := service.store.known(key)) is not None]
    if len(found) == len(wanted):
        return found
    read = partial(service.store.get, max_bytes=RECORD)
    return await service.call(lambda: [*service.each(read, wanted)])


async def snapshots_of(run: RunRequest, folder: str = "") -> Response:
    """Return the numbers of a log's snapshots; ``folder`` as in `page_of`."""
    found = await _listed(run, folder, keys.SNAPSHOTS, keys.snapshot_seq, _MOST_SNAPSHOTS)
    return Rendered.of(SnapshotList(snapshots=found))


async def _listed(
    run: RunRequest, folder: str, below: str, seq_of: Callable[[str], int | None], most: int
) -> tuple[int, ...]:
    """Return the numbers that keys below a log's folder name, ascending; where there are very many, the newest."""
    store = run.service.store_of(run.name)
    listed = islice(store.list(folder + below), _MOST_LISTED)
    found = await run.service.call(lambda: deque((seq_of(key.removeprefix(folder)) for key in listed), maxlen=most))
    return tuple(seq for seq in found if seq is not None)


async def document(run: RunRequest, key: str) -> Response:
    """Return a document of a run, as it is stored."""
    return Rendered(await run.service.get(run.name, key))
