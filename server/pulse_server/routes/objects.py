"""Objects: by a signed URL where the store can sign; through the service where it can't (local files, memory)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect

from pulse_registry.errors import AlreadyExists, InvalidArgument
from pulse_registry.store import Store
from pulse_schemas.api import UrlBody, UrlRequest
from pulse_server.errors import InvalidRequest
from pulse_server.routes import examples
from pulse_server.routes.common import RUN
from pulse_server.routes.operations import Operation, Operations, Says
from pulse_server.routes.params import Parameter, body_of, checked_key, object_key
from pulse_server.scheduling.turns import CALLER
from pulse_server.transport.answers import Rendered, no_content

if TYPE_CHECKING:
    from pulse_server.service import Service

OPERATIONS: Final = Operations("objects")
_PATH: Final = Parameter(
    "path", "an object's key without objects/", re.compile(r".+", re.DOTALL), examples.PATCH.removeprefix("objects/")
)
_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)
_PIECE: Final = 256 << 10
"""Of an object that is read through the service: its reader may be slow, and have thousands beside it."""
_BYTES: Final = "application/octet-stream"
_LENGTHS: Final = {"Content-Length": "its size", "Accept-Ranges": "bytes"}


@OPERATIONS.add(
    Operation(
        "HEAD",
        "/v1/runs/{run}/objects/{path:path}",
        "read",
        "Tell an object's size",
        {200: Says("It is there.", media_type=_BYTES, headers=_LENGTHS)},
        parameters=(RUN, _PATH),
        refuses={404: "It is not there."},
    )
)
async def head_object(request: Request, service: Service) -> Response:
    """Tell an object's size."""
    size = await service.size(RUN(request), object_key(_PATH(request)))
    return Response(headers={"content-length": str(size), "accept-ranges": "bytes"}, media_type=_BYTES)


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/runs/{run}/objects/{path:path}",
        "read",
        "Read an object",
        {
            200: Says("Its bytes, from a store that can't sign URLs.", "", _BYTES, _LENGTHS),
            206: Says("The bytes that `Range` asked for.", "", _BYTES, {"Content-Range": "which they are"}),
            307: Says("Where to read it, until the URL expires.", headers={"Location": "a signed URL"}),
        },
        parameters=(RUN, _PATH),
        refuses={404: "It is not there.", 416: "It has no byte of the `Range`."},
    )
)
async def read_object(request: Request, service: Service) -> Response:
    """Read an object, or be told where to."""
    run, key = RUN(request), object_key(_PATH(request))
    if service.urls.signs:
        urls = await service.urls_of(run, [key])
        return Response(status_code=HTTPStatus.TEMPORARY_REDIRECT, headers={"location": urls.by_key[key]})
    size = await service.size(run, key)
    wanted = _wanted(request.headers.get("range"), size, key)
    start, stop = wanted or (0, size)
    headers = {"content-length": str(stop - start), "accept-ranges": "bytes"}
    if wanted is not None:
        headers["content-range"] = f"bytes {start}-{stop - 1}/{size}"
    status = HTTPStatus.OK if wanted is None else HTTPStatus.PARTIAL_CONTENT
    return StreamingResponse(_chunks(service, service.store_of(run), key, start, stop), status, headers, _BYTES)


@OPERATIONS.add(
    Operation(
        "PUT",
        "/v1/runs/{run}/objects/{path:path}",
        "publish",
        "Store an object through the service",
        {201: Says("It is stored.")},
        "For stores that can't sign URLs; see uploads.",
        (RUN, _PATH),
        body=_BYTES,
        max_body=None,
        refuses={
            400: "The store signs URLs (ask for an upload), or the bytes are damaged.",
            409: "The key is taken.",
            411: "There is no `Content-Length`.",
        },
    )
)
async def store_object(request: Request, service: Service) -> Response:
    """Store an object."""
    run, key = RUN(request), object_key(_PATH(request))
    if service.urls.signs:
        raise InvalidArgument(f"objects of {run!r} go to the store itself: ask for an upload of {key}")
    announced = request.headers.get("content-length", "")
    if not announced.isdigit():
        raise InvalidRequest("the length of an object must be said beforehand", HTTPStatus.LENGTH_REQUIRED)
    store, sender = service.store_of(run), CALLER.get()
    try:
        await service.spool.put(store, key, request.stream(), int(announced), sender=sender, run=run)
    except ClientDisconnect:
        return no_content(HTTPStatus.BAD_REQUEST)  # nobody is there to read it
    except AlreadyExists as error:
        raise AlreadyExists(f"run {run!r} has {key} already: keys are fresh for every write") from error
    return no_content(HTTPStatus.CREATED)


@OPERATIONS.add(
    Operation(
        "POST",
        "/v1/runs/{run}/urls",
        "read",
        "Get URLs of objects",
        {200: Says("A URL for each key.", UrlBody(urls={examples.PATCH: examples.SIGNED}, expires_at=examples.WHEN))},
        "Whether the objects are there is not looked at.",
        (RUN,),
        body=UrlRequest(keys=(examples.PATCH,)),
        max_body=200 << 10,  # of 1,000 keys of 191 letters
        refuses={400: "A key is not valid."},
    )
)
async def make_urls(request: Request, service: Service) -> Response:
    """Get URLs of objects."""
    run = RUN(request)
    wanted = [checked_key(key) for key in (await body_of(request, UrlRequest)).keys]
    urls = await service.urls_of(run, wanted)
    return Rendered.of(UrlBody.model_construct(urls=urls.by_key, expires_at=urls.expires_at))


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
