"""Outer rounds: who trains and how rounds went; their log and their objects, for members without keys of the bucket."""

from __future__ import annotations

from contextlib import suppress
from http import HTTPStatus
from typing import Annotated

from fastapi import Request
from fastapi.responses import Response

from pulse_registry.errors import AccessDenied, NotFound, PulseError
from pulse_registry.format import keys
from pulse_registry.outer.report import outer_body
from pulse_registry.outer.state import OuterState
from pulse_schemas import SchemaError
from pulse_schemas.api import Appended, LogPage, MemberBody, OuterBody, RoundBody, RoundPart, SnapshotList
from pulse_schemas.outer import (
    DeleteRoundsRecord,
    MoveRoundsRecord,
    RestartRecord,
    RetireRoundsRecord,
    unseal_outer_record,
)
from pulse_server.routes import examples
from pulse_server.routes.dependencies import PublishRun, ReadRun, RunRequest
from pulse_server.routes.log import SEALED_ANSWER, Limit, Since, WaitForRecord, document, page_of, snapshots_of
from pulse_server.routes.objects import ANSWERS_OF_READ, ANSWERS_OF_STORE, BYTES, send_object, take_object
from pulse_server.routes.operation import answer, body_limit, operations, problem, raw_body
from pulse_server.routes.params import DECIMAL, OuterObjectPath, Seq, between, outer_object_key, whole
from pulse_server.transport.answers import Rendered

router = operations("outer rounds")
Rounds = Annotated[int, between(0, 500), DECIMAL, whole("how many rounds at most, the newest ones", 20)]
_TAKES_AWAY = (RetireRoundsRecord, DeleteRoundsRecord, MoveRoundsRecord, RestartRecord)
_MARKS = tuple(f'"{kind.model_fields["kind"].default}"'.encode() for kind in _TAKES_AWAY)
"""Without one of them, bytes are no record that only an admin may append."""
_NO_ROUNDS = "The run has no outer rounds."
_PART = RoundPart(member="eu-1", steps=8, entries=4_100_000, nbytes=3_500_000, created_at=examples.WHEN)
_OUTER = OuterBody(
    run=examples.RUN,
    seq=9,
    first=40,
    cells=134_515_008,
    inner_steps=8,
    rate=0.7,
    momentum=0.9,
    quorum=2,
    patience=3,
    members=(
        MemberBody(
            member="eu-1", term=examples.WRITE_ID, since=1, missed=0, standing="contributed", last_round=3, last=_PART
        ),
    ),
    open=RoundBody(round=3, version=43, ended=False, parts=(_PART,), late=("us-1",)),
    rounds=(RoundBody(round=2, version=42, ended=True, parts=(_PART,), late=()),),
)


@router.get(
    "/v1/runs/{run}/outer",
    summary="Show outer rounds",
    description=("The open round, the newest of those that have ended, and who trains."),
    response_model=OuterBody,
    responses={200: answer("The run's outer rounds.", _OUTER), 404: problem(_NO_ROUNDS)},
)
async def show_outer(run: ReadRun, rounds: Rounds = 20) -> Response:
    """Show outer rounds."""
    feed = await run.outer_feed()
    latest = (await run.feed()).state.latest
    cells = None if latest is None else latest.cells
    kept = feed.cache.get((rounds, cells))
    if isinstance(kept, Rendered):
        return kept.aged(feed.age_s)
    state = feed.state
    made = await run.service.render(_rendered, state, cells, rounds)
    if feed.state is state:
        feed.cache[rounds, cells] = made
    return made.aged(feed.age_s)


def _rendered(state: OuterState, cells: int | None, rounds: int) -> Rendered:
    return Rendered.of(outer_body(state, cells, rounds))


@router.get(
    "/v1/runs/{run}/outer/log",
    summary="Read outer records, or wait for the next",
    response_model=LogPage,
    responses={
        200: answer(
            "Records from `since` on; none where there are none yet, also after `wait`.",
            LogPage(run=examples.RUN, since=9, records=(examples.OUTER_SEALED,)),
        ),
        404: problem(_NO_ROUNDS),
    },
)
async def read_outer_log(run: ReadRun, since: Since = 0, limit: Limit = 100, wait: WaitForRecord = None) -> Response:
    """Read outer records."""
    feed = await run.outer_feed()
    if since > feed.state.seq:
        if not wait:
            await feed.refresh()
        elif not run.service.stopping:
            await run.wait_for(feed, lambda state: state.seq >= since, wait)
    return (await page_of(run.service, feed, since, limit, keys.OUTER)).aged(feed.age_s)


@router.post(
    "/v1/runs/{run}/outer/log",
    status_code=201,
    summary="Append an outer record",
    description=(
        "The member makes the record, and seals it, as it would for a bucket. The service checks its seal, every rule "
        "of outer rounds, that the record would count, and that its contribution is there and says the same of itself. "
        "`retire`, `delete`, `move` and `restart` records need an admin's token."
    ),
    response_model=Appended,
    responses={
        201: answer("The record is in the log; also if it was before.", Appended(run=examples.RUN, seq=9)),
        400: problem("The body is no sealed record, breaks a rule, or would count for nothing: nothing was written."),
        409: problem(
            "Another record has the number (AlreadyExists), it comes too early (Conflict), another process has "
            "joined under the member's name, or the run has moved to another root (Fenced)."
        ),
    },
    openapi_extra=raw_body(),
)
@body_limit(64 << 10)
async def append_outer(request: Request, run: PublishRun) -> Response:
    """Append an outer record."""
    service, sealed = run.service, await request.body()
    try:
        await _check_kind(run, sealed)
        with service.outer_feeds.hold(run.name) as feed:
            record = await feed.append(sealed)
    except PulseError as error:
        service.metrics.outer_records.labels(type(error).__name__).inc()
        raise
    service.metrics.outer_records.labels("accepted").inc()
    return Rendered.of(Appended(run=run.name, seq=record.seq), HTTPStatus.CREATED)


@router.get(
    "/v1/runs/{run}/outer/log/{seq}",
    summary="Read one outer record",
    response_class=Response,
    responses={**SEALED_ANSWER, 404: problem("There is no such record.")},
)
async def read_outer_record(run: ReadRun, seq: Seq) -> Response:
    """Read one outer record."""
    try:
        return await document(run, f"{keys.OUTER}{keys.record_key(int(seq))}")
    except NotFound as error:
        raise NotFound(f"run {run.name!r} has no outer record {seq}") from error


@router.get(
    "/v1/runs/{run}/outer/head",
    summary="Read the hint of the outer log",
    response_class=Response,
    responses={**SEALED_ANSWER, 404: problem("The outer log has no head.")},
)
async def read_outer_head(run: ReadRun) -> Response:
    """Read the hint that says which snapshot to open the outer log from."""
    return await document(run, f"{keys.OUTER}{keys.HEAD}")


@router.get(
    "/v1/runs/{run}/outer/snapshots",
    summary="List snapshots of the outer log",
    response_model=SnapshotList,
    responses={
        200: answer(
            "The numbers of the snapshots, ascending; none for a run without outer rounds.",
            SnapshotList(snapshots=(63,)),
        )
    },
)
async def list_outer_snapshots(run: ReadRun) -> Response:
    """List snapshots of the outer log."""
    return await snapshots_of(run, keys.OUTER)


@router.get(
    "/v1/runs/{run}/outer/snapshots/{seq}",
    summary="Read one snapshot of the outer log",
    response_class=Response,
    responses={**SEALED_ANSWER, 404: problem("There is no such snapshot.")},
)
async def read_outer_snapshot(run: ReadRun, seq: Seq) -> Response:
    """Read one snapshot of the outer log."""
    return await document(run, f"{keys.OUTER}{keys.snapshot_key(int(seq))}")


@router.get(
    "/v1/runs/{run}/outer/objects/{path:path}",
    summary="Read an object of outer rounds",
    response_class=Response,
    responses=ANSWERS_OF_READ,
)
async def read_outer_object(request: Request, run: ReadRun, path: OuterObjectPath) -> Response:
    """Read an object of outer rounds, or be told where to."""
    return await send_object(request, run, outer_object_key(path))


@router.put(
    "/v1/runs/{run}/outer/objects/{path:path}",
    status_code=201,
    summary="Store an object of outer rounds through the service",
    description=("For stores that can't sign URLs; see uploads. It is no larger than a contribution can be."),
    response_class=Response,
    responses=ANSWERS_OF_STORE,
    openapi_extra=raw_body(BYTES),
)
@body_limit(None)
async def store_outer_object(request: Request, run: PublishRun, path: OuterObjectPath) -> Response:
    """Store an object of outer rounds."""
    return await take_object(request, run, outer_object_key(path))


async def _check_kind(run: RunRequest, sealed: bytes) -> None:
    """Check that whoever appends a record that takes something away is an admin; what is no record is not looked at."""
    if run.who.may("admin", run.name) or not any(mark in sealed for mark in _MARKS):
        return
    with suppress(SchemaError):
        record = await run.service.call(unseal_outer_record, sealed)
        if isinstance(record, _TAKES_AWAY):
            raise AccessDenied(f"run {run.name!r}: an outer {record.kind} record needs a token of scope 'admin'")
