"""Objects: by a signed URL where the store can sign; through the service where it can't (local files, memory)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect

from pulse_registry.errors import AlreadyExists, InvalidArgument
from pulse_registry.store import Store
from pulse_schemas.api import UrlBody, UrlRequest
from pulse_server.errors import InvalidRequest
from pulse_server.routes import examples
from pulse_server.routes.bases_named import check_named
from pulse_server.routes.contribution_size import check_size
from pulse_server.routes.dependencies import PublishRun, ReadRun, RunRequest
from pulse_server.routes.operation import Responses, answer, body_limit, operations, problem, raw_body
from pulse_server.routes.params import ObjectPath, SegmentName, document, object_key, readable_key, segment_key
from pulse_server.scheduling.turns import CALLER
from pulse_server.service import Service
from pulse_server.transport.answers import Rendered, no_content

router = operations("objects")
_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)
_PIECE: Final = 256 << 10
"""Of an object that is read through the service: its reader may be slow, and have thousands beside it."""
BYTES: Final = "application/octet-stream"
_WANTED: Final = UrlRequest(keys=(examples.PATCH,))
_LENGTHS: Final = {"Content-Length": "the size of the object", "Accept-Ranges": "bytes"}
ANSWERS_OF_READ: Final[Responses] = {
    200: answer("The bytes of the object, from a store that can't presign.", "", BYTES, _LENGTHS),
    206: answer("The bytes that `Range` asked for.", "", BYTES, {"Content-Range": "which bytes they are"}),
    307: answer("Where to read it, until the URL expires.", headers={"Location": "a signed URL"}),
    404: problem("There is no such object."),
    416: problem("The `Range` is past the end of the object."),
}
ANSWERS_OF_STORE: Final[Responses] = {
    201: answer("The object is stored."),
    400: problem("The store signs URLs (ask for an upload), or the bytes are damaged."),
    409: problem("The key is taken."),
    411: problem("There is no `Content-Length`."),
}


@router.head(
    "/v1/runs/{run}/objects/{path:path}",
    summary="Read the size of an object",
    response_class=Response,
    responses={
        200: answer("The object exists.", media_type=BYTES, headers=_LENGTHS),
        404: problem("There is no such object."),
    },
)
async def head_object(run: ReadRun, path: ObjectPath) -> Response:
    """Tell an object's size."""
    size = await run.service.size(run.name, object_key(path))
    return Response(headers={"content-length": str(size), "accept-ranges": "bytes"}, media_type=BYTES)


@router.get(
    "/v1/runs/{run}/objects/{path:path}",
    summary="Read an object",
    response_class=Response,
    responses=ANSWERS_OF_READ,
)
async def read_object(request: Request, run: ReadRun, path: ObjectPath) -> Response:
    """Read an object, or be told where to."""
    return await send_object(request, run, object_key(path))


@router.get(
    "/v1/runs/{run}/log/segments/{name}",
    summary="Read a segment of a snapshot",
    response_class=Response,
    responses=ANSWERS_OF_READ,
)
async def read_segment(request: Request, run: ReadRun, name: SegmentName) -> Response:
    """Read a segment, or be told where to."""
    return await send_object(request, run, segment_key(name))


@router.put(
    "/v1/runs/{run}/objects/{path:path}",
    status_code=201,
    summary="Store an object through the service",
    description=("For stores that can't sign URLs; see uploads."),
    response_class=Response,
    responses=ANSWERS_OF_STORE,
    openapi_extra=raw_body(BYTES),
)
@body_limit(None)
async def store_object(request: Request, run: PublishRun, path: ObjectPath) -> Response:
    """Store an object."""
    return await take_object(request, run, object_key(path))


@router.post(
    "/v1/runs/{run}/urls",
    summary="Get URLs of objects and segments",
    description=("It is not checked that the objects exist."),
    response_model=UrlBody,
    responses={
        200: answer("A URL for each key.", UrlBody(urls={examples.PATCH: examples.SIGNED}, expires_at=examples.WHEN)),
        400: problem("A key is not valid."),
    },
)
@body_limit(200 << 10)  # of 1,000 keys of 191 letters
async def make_urls(
    run: ReadRun, wanted: Annotated[UrlRequest, document(UrlRequest(keys=(examples.PATCH,)))]
) -> Response:
    """Get URLs of objects."""
    keys = [readable_key(key) for key in wanted.keys]
    await check_named(run, keys)
    urls = await run.service.urls_of(run.name, keys)
    return Rendered.of(UrlBody.model_construct(urls=urls.by_key, expires_at=urls.expires_at))


async def send_object(request: Request, run: RunRequest, key: str) -> Response:
    """Return an object, or where to read it.

    Raises:
        NotFound: it is not there.
        InvalidRequest: it has none of the bytes that are asked for (416).
    """
    service, name = run.service, run.name
    if service.urls.signs:
        urls = await service.urls_of(name, [key])
        return Response(status_code=HTTPStatus.TEMPORARY_REDIRECT, headers={"location": urls.by_key[key]})
    size = await service.size(name, key)
    wanted = _wanted(request.headers.get("range"), size, key)
    start, stop = wanted or (0, size)
    headers = {"content-length": str(stop - start), "accept-ranges": "bytes"}
    if wanted is not None:
        headers["content-range"] = f"bytes {start}-{stop - 1}/{size}"
    status = HTTPStatus.OK if wanted is None else HTTPStatus.PARTIAL_CONTENT
    return StreamingResponse(_chunks(service, service.store_of(name), key, start, stop), status, headers, BYTES)


async def take_object(request: Request, run: RunRequest, key: str) -> Response:
    """Store an object that comes with a request, where the store can't sign.

    Raises:
        InvalidArgument: the store signs, or it is too large.
        InvalidRequest: its length was not said (411).
        AlreadyExists: the key is taken.
    """
    announced = _announced(request, run, key)
    await check_size(run, key, announced)
    return await spooled(request, run, key)


async def spooled(request: Request, run: RunRequest, key: str) -> Response:
    """Store what comes with a request, however large it is; raises as `take_object`."""
    service, name = run.service, run.name
    announced = _announced(request, run, key)
    store, sender = service.store_of(name), CALLER.get()
    try:
        await service.spool.put(store, key, request.stream(), announced, sender=sender, run=name)
    except ClientDisconnect:
        return no_content(HTTPStatus.BAD_REQUEST)  # nobody is there to read it
    except AlreadyExists as error:
        raise AlreadyExists(f"run {name!r} has {key} already: keys are fresh for every write") from error
    return no_content(HTTPStatus.CREATED)


def _announced(request: Request, run: RunRequest, key: str) -> int:
    """Return how long the object is said to be that comes with a request, where the service takes it itself."""
    if run.service.urls.signs:
        raise InvalidArgument(f"objects of {run.name!r} go to the store itself: ask for an upload of {key}")
    announced = request.headers.get("content-length", "")
    if not announced.isdigit():
        raise InvalidRequest("the length of an object must be said beforehand", HTTPStatus.LENGTH_REQUIRED)
    return int(announced)


async def _chunks(service: Service, store: Store, key: str, start: int, stop: int) -> AsyncIterator[bytes]:
    for begin in range(start, stop, _PIECE):
        yield await service.call(store.get, key, (begin, min(begin + _PIECE, stop)))


def _wanted(header: str | None, size: int, key: str) -> tuple[int, int] | None:
    """Return the half-open range that a request asks for; None for all, also where it asks in another way.

    Raises:
        InvalidRequest: the object has none of these bytes (416).
    """
    found = None if header is None else _RANGE.fullmatch(header)
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        start, stop = max(0, size - int(last)), size
    elif last and int(last) < int(first):
        return None
    else:
        start, stop = int(first), size if not last else min(int(last) + 1, size)
    if start >= stop:
        raise InvalidRequest(
            f"{key} has {size} bytes: none of {header!r}",
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            headers={"content-range": f"bytes */{size}"},
        )
    return start, stop
