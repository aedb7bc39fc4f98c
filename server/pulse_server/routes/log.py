"""The log: records as they are stored, the next one to wait for, and the one that a writer appends."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Final

from blake3 import blake3
from fastapi import Request
from fastapi.responses import Response

from pulse_registry.errors import AccessDenied, InvalidArgument, NotFound, PulseError
from pulse_registry.format import keys
from pulse_registry.log.documents import LAYOUT, RECORD
from pulse_registry.store import create
from pulse_schemas import DeleteRecord, RetireRecord, SchemaError, unseal_record
from pulse_schemas.api import Appended, LogPage, SnapshotList
from pulse_server.auth.access import PRINCIPAL
from pulse_server.routes import examples
from pulse_server.routes.common import LAYOUT_ID, RUN, SEQ, feed_of, wait_for, wait_parameter
from pulse_server.routes.operations import Operation, Operations, Says
from pulse_server.routes.params import Whole
from pulse_server.runs.feed import RunFeed
from pulse_server.scheduling.turns import CALLER
from pulse_server.transport.answers import Rendered, no_content

if TYPE_CHECKING:
    from pulse_server.service import Service

OPERATIONS: Final = Operations("log")
_SINCE: Final = Whole("since", "the first record", 43, 0)
_LIMIT: Final = Whole("limit", "how many at most", 100, 100, 1, 1000)
_WAIT: Final = wait_parameter("record `since`")
_MOST_LISTED: Final = 1 << 20
_MOST_SNAPSHOTS: Final = 10_000
"""The newest of a listing, which might have no end: readers look at eight."""
_READ_TOGETHER: Final = 32
"""Records that are in memory together though a page may end before them."""
_PAGE_BYTES: Final = 8 << 20
"""Of records in one page, but for its first."""

_MOST_NAMED: Final = 8_192
_MOST_VALUES: Final = 20_000
"""Of a record: objects and lists in it, and values. The record of a keyframe of 2 TB has 1,700 shards of three fields,
the longest `retire` record 2,000 values. Beside what reads far more, no other thread would run."""

_TAKES_AWAY: Final = {b'"kind":"retire"': RetireRecord, b'"kind":"delete"': DeleteRecord}
"""The records that only an admin may append, by what is in their bytes, and may be in another one's metadata."""

_SEALED: Final = {200: Says("The sealed document, as stored.", examples.SEALED)}


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/runs/{run}/log",
        "read",
        "Read records, or wait for the next",
        {
            200: Says(
                "Records from `since` on; none where there are none yet, also after `wait`.",
                LogPage(run=examples.RUN, since=43, records=(examples.SEALED,)),
            )
        },
        parameters=(RUN, _SINCE, _LIMIT, _WAIT),
        refuses={404: "There is no such run."},
    )
)
async def read_log(request: Request, service: Service) -> Response:
    """Read records."""
    since, limit, wait = _SINCE(request) or 0, _LIMIT(request) or 1, _WAIT(request)
    feed = await feed_of(request, service, remember=False)  # a writer may have begun the run at another replica
    if since > feed.state.seq:
        if not wait:
            await feed.refresh()
        elif not service.stopping:
            await wait_for(request, service, feed, lambda state: state.seq >= since, wait)
    return (await _page(service, feed, since, limit)).aged(feed.age_s)


@OPERATIONS.add(
    Operation(
        "POST",
        "/v1/runs/{run}/log",
        "publish",
        "Append a record",
        {201: Says("It is in the log; also where it was before.", Appended(run=examples.RUN, seq=43))},
        "The writer makes the record, and seals it, as it would for a bucket. The service checks its seal, every rule "
        "of the log, and that each object it names is there with its size. `retire` and `delete` records need an "
        "admin's token.",
        (RUN,),
        body="application/json",
        max_body=8 << 20,  # as `pulse_registry.log` reads
        refuses={
            400: "It is no sealed record, breaks a rule, or names what is not there: nothing was written.",
            409: "Another record has the number (AlreadyExists), it comes too early (Conflict), or a newer writer "
            "began its term (Fenced).",
        },
    )
)
async def append(request: Request, service: Service) -> Response:
    """Append a record."""
    run, sealed = RUN(request), await request.body()
    try:
        _check_parts(run, sealed)
        await _check_kind(request, service, run, sealed)
        with service.feeds.hold(run) as feed:
            record = await feed.append(sealed)
    except PulseError as error:
        service.metrics.commits.labels(type(error).__name__).inc()
        raise
    service.metrics.commits.labels("accepted").inc()
    return Rendered.of(Appended(run=run, seq=record.seq), HTTPStatus.CREATED)


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/runs/{run}/log/{seq}",
        "read",
        "Read one record",
        _SEALED,
        parameters=(RUN, SEQ),
        refuses={404: "There is no such run or record."},
    )
)
async def read_record(request: Request, service: Service) -> Response:
    """Read one record."""
    seq = int(SEQ(request))
    feed = await feed_of(request, service, remember=False)  # a writer may have begun the run at another replica
    if seq > feed.state.seq:
        await feed.refresh()
    try:
        if seq == feed.state.seq + 1:
            raise NotFound  # it was just looked for
        # One further on is there where a record before it is missing, which who has seen it wants to know.
        return await _document(service, feed.run, keys.record_key(seq))
    except NotFound as error:
        raise NotFound(f"run {feed.run!r} has no record {seq}; the newest is {feed.state.seq}") from error


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/runs/{run}/log/{seq}/countersignature",
        "read",
        "Read the countersignature of a record",
        _SEALED,
        "Asked for by readers that don't believe the record's own signature. It is not verified here.",
        parameters=(RUN, SEQ),
        refuses={404: "There is no such run or record, or nobody has countersigned it."},
    )
)
async def read_countersignature(request: Request, service: Service) -> Response:
    """Read the countersignature of a record."""
    return await _document(service, RUN(request), keys.countersignature_key(int(SEQ(request))))


@OPERATIONS.add(
    Operation("GET", "/v1/runs/{run}/head", "read", "Read the hint", _SEALED, parameters=(RUN,), refuses={404: "None."})
)
async def read_head(request: Request, service: Service) -> Response:
    """Read the hint that says which snapshot to open the run from."""
    return await _document(service, RUN(request), keys.HEAD)


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/runs/{run}/snapshots",
        "read",
        "List snapshots of the log",
        {200: Says("Their numbers, ascending; none for a run that does not exist.", SnapshotList(snapshots=(63,)))},
        parameters=(RUN,),
    )
)
async def list_snapshots(request: Request, service: Service) -> Response:
    """List snapshots."""
    store = service.store_of(RUN(request))
    listed = islice(store.list(keys.SNAPSHOTS), _MOST_LISTED)
    found = await service.call(lambda: deque(map(keys.snapshot_seq, listed), maxlen=_MOST_SNAPSHOTS))
    return Rendered.of(SnapshotList(snapshots=tuple(seq for seq in found if seq is not None)))


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/runs/{run}/snapshots/{seq}",
        "read",
        "Read one snapshot",
        _SEALED,
        parameters=(RUN, SEQ),
        refuses={404: "There is no such snapshot."},
    )
)
async def read_snapshot(request: Request, service: Service) -> Response:
    """Read one snapshot."""
    return await _document(service, RUN(request), keys.snapshot_key(int(SEQ(request))))


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/runs/{run}/layouts/{id}",
        "read",
        "Read a layout",
        {200: Says("The layout, as stored.", '{"format":"pulse-layout/1","tensors":[...],"tied":{}}')},
        parameters=(RUN, LAYOUT_ID),
        refuses={404: "There is no such layout."},
    )
)
async def read_layout(request: Request, service: Service) -> Response:
    """Read a layout."""
    return await _document(service, RUN(request), keys.layout_key(LAYOUT_ID(request)))


@OPERATIONS.add(
    Operation(
        "PUT",
        "/v1/runs/{run}/layouts/{id}",
        "publish",
        "Store a layout",
        {201: Says("It is stored; also where it was before.")},
        parameters=(RUN, LAYOUT_ID),
        body="application/json",
        max_body=None,
        refuses={400: "It is no layout, or does not hash to its id."},
    )
)
async def store_layout(request: Request, service: Service) -> Response:
    """Store a layout."""
    run, layout_id, data = RUN(request), LAYOUT_ID(request), await request.body()
    if len(data) > LAYOUT:
        raise InvalidArgument(f"run {run!r}: a layout has at most {LAYOUT:,} bytes, and this {len(data):,}")
    hashed = await service.call(lambda: blake3(data).hexdigest())
    if hashed != layout_id:
        raise InvalidArgument(f"run {run!r}: the layout hashes to {hashed}, not to {layout_id}")
    try:
        await service.nbytes_of(data)
    except SchemaError as error:
        raise InvalidArgument(f"run {run!r}: this is no layout: {error}") from error
    await service.call(create, service.store_of(run), keys.layout_key(layout_id), data)
    return no_content(HTTPStatus.CREATED)


def _check_parts(run: str, sealed: bytes) -> None:
    """Check that a record does not have too many parts, before it is parsed; what is in its texts is counted, too."""
    if sealed.count(b"{") + sealed.count(b"[") > _MOST_NAMED or sealed.count(b",") > _MOST_VALUES:
        raise InvalidArgument(
            f"run {run!r}: a record that goes through the service has {_MOST_NAMED:,} objects and lists, and "
            f"{_MOST_VALUES:,} values, at most: name fewer objects or versions in one, or say less in its metadata"
        )


async def _check_kind(request: Request, service: Service, run: str, sealed: bytes) -> None:
    """Check that whoever appends a record that takes something away is an admin; what is no record is not looked at."""
    kinds = tuple(kind for mark, kind in _TAKES_AWAY.items() if mark in sealed)
    if not kinds or request.scope[PRINCIPAL].may("admin", run):
        return
    with suppress(SchemaError):
        record = await service.call(unseal_record, sealed)
        if isinstance(record, kinds):
            raise AccessDenied(f"run {run!r}: a {record.kind} record needs a token of scope 'admin'")


async def _page(service: Service, feed: RunFeed, since: int, limit: int) -> Rendered:
    """Return a page of records; all who ask for the same one of the same state share it."""
    until = min(feed.state.seq + 1, since + limit)
    key = ("log", feed.run, feed.state.last, since, until)
    page = service.pages.get(key)
    if page is None:
        mine = (*key, CALLER.get())  # nobody waits in another's line for it
        task = feed.reading.get(mine)
        if task is None:
            task = feed.reading[mine] = asyncio.create_task(_read_page(service, feed.run, since, until))
            task.add_done_callback(lambda _: feed.reading.pop(mine, None))
        page = await asyncio.shield(task)
        service.pages.keep(key, page, len(page.body))
    return page


async def _read_page(service: Service, run: str, since: int, until: int) -> Rendered:
    records: list[str] = []
    nbytes, at = 0, since
    while at < until and nbytes <= _PAGE_BYTES:
        for sealed in await _read_records(service, run, at, min(until, at + _READ_TOGETHER)):
            nbytes += len(sealed)
            if nbytes <= _PAGE_BYTES or not records:
                records.append(sealed.decode())
        at += _READ_TOGETHER
    return Rendered.of(LogPage.model_construct(run=run, since=since, records=tuple(records)))


async def _read_records(service: Service, run: str, since: int, until: int) -> list[bytes]:
    wanted = [f"{run}/{keys.record_key(seq)}" for seq in range(since, until)]
    found = [known for key in wanted if (known := service.store.known(key)) is not None]
    if len(found) == len(wanted):
        return found
    read = partial(service.store.get, max_bytes=RECORD)
    return await service.call(lambda: [*service.each(read, wanted)])


async def _document(service: Service, run: str, key: str) -> Response:
    return Rendered(await service.get(run, key))
