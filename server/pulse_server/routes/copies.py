"""Copies of runs of other roots, as a mirror writes them: bytes of objects, and the source's own records, in order.

The service signs nothing here and judges no writer. It holds the mirror to the rights that one has in a bucket, to runs
that carry the mark of a copy, and each record to the chain before it.
"""

from __future__ import annotations

from email.utils import format_datetime
from functools import partial
from itertools import islice
from typing import Annotated, Final

from fastapi import Request
from fastapi.responses import Response

from pulse_registry.errors import AlreadyExists, InvalidArgument
from pulse_registry.format import keys
from pulse_registry.format.keys import below_root
from pulse_registry.log.documents import most_bytes
from pulse_registry.log.mirror_mark import check_mirror, read_mark
from pulse_registry.mirror.claim import claim
from pulse_registry.mirror.followed_log import FollowedRounds, FollowedRun
from pulse_registry.mirror.rights import Right, right_of
from pulse_registry.store import Store
from pulse_registry.store.keys import check_key
from pulse_schemas import MirrorMark, SchemaError
from pulse_schemas.api import CompleteRequest, KeyList, PartRequest, SignedRequest, UploadBody, UploadRequest
from pulse_server.errors import shown
from pulse_server.routes import examples, uploads
from pulse_server.routes.dependencies import MirrorRun, RunRequest
from pulse_server.routes.log import SEALED_ANSWER
from pulse_server.routes.objects import ANSWERS_OF_STORE, BYTES, spooled
from pulse_server.routes.operation import answer, body_limit, operations, problem, raw_body
from pulse_server.routes.params import document, segment, text
from pulse_server.transport.answers import Rendered, no_content
from pulse_server.transport.urls import own_path

router = operations("copies")
_MOST_LISTED: Final = 1000
CopyKey = Annotated[str, segment("a key below the run", ".{1,1024}", keys.HEAD)]
LargeKey = Annotated[str, segment("a key of an object below the run", ".{1,1024}", examples.PATCH)]
Prefix = Annotated[str, text("what the keys begin with", "[A-Za-z0-9._:/-]{0,1024}", keys.OBJECTS)]
After = Annotated[str, text("only keys behind this one", "[A-Za-z0-9._:/-]{0,1024}", examples.PATCH)]
_NO_COPY: Final = "The run is no copy: writers work there."


@router.get(
    "/v1/runs/{run}/copy/keys",
    summary="List keys of a run",
    response_model=KeyList,
    responses={200: answer("Keys below the run, in order.", KeyList(keys=(examples.PATCH,), more=False))},
)
async def list_keys(run: MirrorRun, prefix: Prefix = "", after: After = "") -> Response:
    """List keys."""
    store = run.service.store_of(run.name)
    found = await run.service.call(lambda: [*islice(store.list(prefix, after or None), _MOST_LISTED + 1)])
    return Rendered.of(KeyList.model_construct(keys=tuple(found[:_MOST_LISTED]), more=len(found) > _MOST_LISTED))


@router.head(
    "/v1/runs/{run}/copy/keys/{key:path}",
    summary="Read the size and the age of what lies under a key",
    response_class=Response,
    responses={
        200: answer(
            "It is there.",
            media_type=BYTES,
            headers={"Content-Length": "its size", "Last-Modified": "when it was written, by the store's clock"},
        ),
        404: problem("There is no such key."),
    },
)
async def head_key(run: MirrorRun, key: CopyKey) -> Response:
    """Tell size and age."""
    size = await run.service.size(run.name, _known(key))
    modified = await run.service.call(run.service.store_of(run.name).modified, key)
    headers = {"content-length": str(size), "last-modified": format_datetime(modified, usegmt=True)}
    return Response(headers=headers, media_type=BYTES)


@router.get(
    "/v1/runs/{run}/copy/keys/{key:path}",
    summary="Read a document of a run",
    description=("Objects and segments are read by URLs."),
    response_class=Response,
    responses={**SEALED_ANSWER, 404: problem("There is no such key.")},
)
async def read_key(run: MirrorRun, key: CopyKey) -> Response:
    """Read a document."""
    if keys.segment_of(_known(key)) is not None or keys.is_object_key(key.removeprefix(keys.OUTER)):
        raise InvalidArgument(f"{shown(key)} is read by its URL: ask for that")
    run.service.store.forget(below_root(run.name, key))  # whether the bucket's own is whole, is what is asked
    return Rendered(await run.service.get(run.name, key))


@router.put(
    "/v1/runs/{run}/copy/keys/{key:path}",
    status_code=204,
    summary="Write a record or a small document of a copy",
    description=(
        "A record is created if it is the next one of the source's log, which it must go on with. `mirror` makes a run "
        "that is not there a copy. Hints, countersignatures and the clock are replaced."
    ),
    response_class=Response,
    responses={
        204: answer("It is there."),
        400: problem("A mirror does not write this, or the record is not valid, or does not go on with the log."),
        409: problem(f"{_NO_COPY} Or another record has the number."),
    },
    openapi_extra=raw_body(),
)
@body_limit(8 << 20)
async def write_key(request: Request, run: MirrorRun, key: CopyKey) -> Response:
    """Write a document."""
    _check_right(key, Right.CREATE | Right.REPLACE)
    if _is_large(key):
        raise InvalidArgument(f"{shown(key)} is created by an upload")
    service, data, store = run.service, await request.body(), run.service.store_of(run.name)
    if len(data) > most_bytes(key):
        raise InvalidArgument(f"run {run.name!r}: {key} has {most_bytes(key):,} bytes at most, and this {len(data):,}")
    _check_one_root(store)
    if key == keys.MIRROR:
        await service.call(_claim, store, run.name, data)
    elif (seq := keys.record_seq(key)) is not None:
        with service.feeds.hold(run.name) as feed:
            await feed.append(data, copied=seq)
    elif (seq := keys.record_seq(key.removeprefix(keys.OUTER))) is not None:
        with service.outer_feeds.hold(run.name) as outer:
            await outer.append(data, copied=seq)
    else:
        await _check_copy(run)
        await service.call(store.put, key, data)
    return no_content()


@router.delete(
    "/v1/runs/{run}/copy/keys/{key:path}",
    status_code=204,
    summary="Delete what the source has retired, or what is damaged",
    response_class=Response,
    responses={
        204: answer("The copy has no such key."),
        400: problem("A mirror does not delete this."),
        409: problem(_NO_COPY),
    },
)
async def delete_key(run: MirrorRun, key: CopyKey) -> Response:
    """Delete an object, a layout, a snapshot or a lease."""
    _check_right(key, Right.DELETE)
    await _check_copy(run)
    await run.service.call(run.service.store_of(run.name).delete, key)
    return no_content()


@router.put(
    "/v1/runs/{run}/copy/objects/{key:path}",
    status_code=201,
    summary="Store an object of a copy through the service",
    description=("For stores that can't sign URLs; see uploads of copies."),
    response_class=Response,
    responses={**ANSWERS_OF_STORE, 409: problem(f"The key is taken. {_NO_COPY}")},
    openapi_extra=raw_body(BYTES),
)
@body_limit(None)
async def store_copied(request: Request, run: MirrorRun, key: LargeKey) -> Response:
    """Store an object."""
    await _check_create(run, key)
    return await spooled(request, run, key)


@router.post(
    "/v1/runs/{run}/copy/uploads",
    status_code=201,
    summary="Begin an upload to a copy",
    description=("As uploads of a trainer, but for layouts, segments and snapshots, too."),
    response_model=UploadBody,
    responses={
        201: answer("How to store the object.", UploadBody(kind="put", request=uploads.SIGNED)),
        400: problem("A mirror does not create this."),
        409: problem(_NO_COPY),
    },
)
async def begin_copy_upload(run: MirrorRun, wanted: Annotated[UploadRequest, document(uploads.UPLOAD)]) -> Response:
    """Begin to store an object."""
    await _check_create(run, wanted.key)
    return await uploads.begun(run, wanted.key, wanted, own_path(run.name, f"copy/objects/{wanted.key}"))


@router.post(
    "/v1/runs/{run}/copy/uploads/{upload}/parts",
    summary="Get the request that stores one part of an upload to a copy",
    response_model=SignedRequest,
    responses={
        200: answer("The request to send.", uploads.SIGNED),
        400: problem("The key or the upload is not valid, or the store can't presign."),
        409: problem(_NO_COPY),
    },
)
async def sign_copy_part(
    run: MirrorRun, upload: uploads.UploadName, part: Annotated[PartRequest, document(uploads.PART)]
) -> Response:
    """Sign the request that stores a part."""
    await _check_create(run, part.key)
    return await uploads.signed(run, part.key, upload, part)


@router.post(
    "/v1/runs/{run}/copy/uploads/{upload}/complete",
    status_code=201,
    summary="Complete an upload to a copy in parts",
    response_class=Response,
    responses={
        201: answer("The object is stored."),
        400: problem("A part is missing or differs, or there is no such upload."),
        409: problem(f"The key is taken. {_NO_COPY}"),
    },
)
@body_limit(uploads.COMPLETE_BYTES, values=3 * uploads.MAX_PARTS + 1)
async def complete_copy_upload(
    run: MirrorRun, upload: uploads.UploadName, wanted: Annotated[CompleteRequest, document(uploads.COMPLETE)]
) -> Response:
    """Make an object of its parts."""
    await _check_create(run, wanted.key)
    return await uploads.completed(run, wanted.key, upload, wanted)


@router.delete(
    "/v1/runs/{run}/copy/uploads/{upload}",
    status_code=204,
    summary="Abort an upload to a copy",
    response_class=Response,
    responses={
        204: answer("The upload is aborted; also if there was none."),
        400: problem("The key or the upload is not valid, or the store can't presign."),
    },
)
async def abort_copy_upload(run: MirrorRun, upload: uploads.UploadName, key: uploads.ObjectKey) -> Response:
    """Give up an upload."""
    _check_large(key)
    return await uploads.aborted(run, key, upload)


def _claim(store: Store, run: str, sealed: bytes) -> None:
    """Make a run that is not there, or has moved away, a copy.

    Raises:
        AlreadyExists: it is one.
        InvalidArgument: the body is no mark of it.
        Conflict: writers work there.
    """
    try:
        mark = MirrorMark.unseal(sealed)
    except SchemaError as error:
        raise InvalidArgument(f"run {run!r}: this is no mark of a copy: {error}") from error
    if mark.run != run:
        raise InvalidArgument(f"run {run!r}: this is the mark of run {mark.run!r}")
    if read_mark(store) is not None:
        raise AlreadyExists(f"run {run!r} is a copy already")
    logs = FollowedRun(store, run), FollowedRounds(store, run)
    for log in logs:
        log.refresh()
    claim(store, run, mark.source, logs)


async def _check_create(run: RunRequest, key: str) -> None:
    """Check that a mirror may create an object, and that the run is a copy."""
    _check_large(key)
    _check_one_root(run.service.store_of(run.name))
    await _check_copy(run)


async def _check_copy(run: RunRequest) -> None:
    await run.service.call(partial(check_mirror, run.service.store_of(run.name), run.name))


def _check_one_root(store: Store) -> None:
    if store.roots() is not None:
        raise InvalidArgument("this service reads several roots: a copy is written through a service over one of them")


def _check_large(key: str) -> None:
    _check_right(key, Right.CREATE)
    if not _is_large(key):
        raise InvalidArgument(f"{shown(key)} is no object's key")


def _check_right(key: str, right: Right) -> None:
    check_key(key)
    if not right_of(key) & right:
        raise InvalidArgument(f"{shown(key)}: a mirror does not do this to a copy; shared bases are copied in a bucket")


def _known(key: str) -> str:
    """Return a key that a mirror looks at."""
    check_key(key)
    if not right_of(key) and key != keys.HOME:
        raise InvalidArgument(f"{shown(key)} is no key that a mirror looks at")
    return key


def _is_large(key: str) -> bool:
    """Tell whether what lies under a key is created, may be large, and may be deleted again."""
    return Right.CREATE | Right.DELETE in right_of(key)
