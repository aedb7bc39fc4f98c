"""Uploads: signed requests with which a trainer stores an object in the bucket, though it holds no key of it."""

from __future__ import annotations

import base64
import binascii
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from fastapi import Request
from fastapi.responses import Response

from pulse_registry.errors import AlreadyExists, InvalidArgument
from pulse_registry.store.presigner import Presigner, SignedPut, UploadedPart
from pulse_schemas.api import CompleteRequest, PartDone, PartRequest, SignedRequest, UploadBody, UploadRequest
from pulse_server.routes import examples
from pulse_server.routes.common import RUN
from pulse_server.routes.operations import Operation, Operations, Says
from pulse_server.routes.params import Parameter, body_of, checked_key
from pulse_server.transport.answers import Rendered, no_content
from pulse_server.transport.urls import own_path

if TYPE_CHECKING:
    from pulse_server.service import Service

OPERATIONS: Final = Operations("uploads")
MAX_PARTS: Final = 10_000
_MIB: Final = 1 << 20
_UPLOAD: Final = Parameter("upload", "an upload's id", re.compile(r"[A-Za-z0-9_-]{1,2048}"), "dXBsb2FkLTE")
_KEY: Final = Parameter("key", "the object's key", re.compile(r".{1,1024}"), examples.PATCH, "query")
_SIGNED: Final = SignedRequest(
    url=examples.SIGNED,
    headers={"content-length": "81000000", "if-none-match": "*", "x-amz-checksum-sha256": "0dHR0Q=="},
)


@OPERATIONS.add(
    Operation(
        "POST",
        "/v1/runs/{run}/uploads",
        "publish",
        "Begin to store an object",
        {201: Says("How to store it.", UploadBody(kind="put", request=_SIGNED))},
        "Without `sha256` the object goes in parts, or through the service.",
        (RUN,),
        body=UploadRequest(key=examples.PATCH, size=81_000_000, sha256=examples.SHA256),
        refuses={400: "The key is not valid, or the object is too long."},
    )
)
async def begin_upload(request: Request, service: Service) -> Response:
    """Begin to store an object."""
    run, wanted = RUN(request), await body_of(request, UploadRequest)
    key, settings = checked_key(wanted.key), service.settings
    signer = service.store_of(run).presigner()
    if signer is None:
        body = UploadBody(kind="direct", request=SignedRequest(url=own_path(run, key), headers={}))
    elif wanted.sha256 is not None and wanted.size <= settings.single_put_bytes:
        put = await service.call(signer.presign_put, key, wanted.size, wanted.sha256, settings.url_ttl_s)
        body = UploadBody(kind="put", request=_signed(service, put, wanted.size))
    else:
        upload_id = await service.call(signer.begin_parts, key)
        part_size = max(settings.part_bytes, -(-wanted.size // MAX_PARTS // _MIB) * _MIB)
        body = UploadBody(kind="parts", upload_id=_encoded(upload_id), part_size=part_size)
    return Rendered.of(body, HTTPStatus.CREATED)


@OPERATIONS.add(
    Operation(
        "POST",
        "/v1/runs/{run}/uploads/{upload}/parts",
        "publish",
        "Get the request that stores one part",
        {200: Says("The request to send.", _SIGNED)},
        parameters=(RUN, _UPLOAD),
        body=PartRequest(key=examples.PATCH, number=1, size=64 * _MIB, sha256=examples.SHA256),
        refuses={400: "The key or the upload is not valid, or the store signs no requests."},
    )
)
async def sign_part(request: Request, service: Service) -> Response:
    """Sign the request that stores a part."""
    run, upload_id = RUN(request), _decoded(_UPLOAD(request))
    part = await body_of(request, PartRequest)
    key, signer = checked_key(part.key), _signer(service, run)
    put = await service.call(
        signer.presign_part, key, upload_id, part.number, part.size, part.sha256, service.settings.url_ttl_s
    )
    return Rendered.of(_signed(service, put, part.size))


@OPERATIONS.add(
    Operation(
        "POST",
        "/v1/runs/{run}/uploads/{upload}/complete",
        "publish",
        "Make an object of its parts",
        {201: Says("It is stored.")},
        parameters=(RUN, _UPLOAD),
        body=CompleteRequest(
            key=examples.PATCH, parts=(PartDone(number=1, etag='"5d41402a"', sha256=examples.SHA256),)
        ),
        max_body=2 << 20,  # of 10,000 parts
        refuses={400: "A part is missing or differs, or there is no such upload.", 409: "The key is taken."},
    )
)
async def complete_upload(request: Request, service: Service) -> Response:
    """Make an object of its parts."""
    run, upload_id = RUN(request), _decoded(_UPLOAD(request))
    wanted = await body_of(request, CompleteRequest, max_values=3 * MAX_PARTS + 1)
    key, signer = checked_key(wanted.key), _signer(service, run)
    parts = [UploadedPart(part.number, part.etag, part.sha256) for part in wanted.parts]
    try:
        await service.call(signer.finish_parts, key, upload_id, parts)
    except AlreadyExists as error:
        raise AlreadyExists(f"run {run!r} has {key} already: keys are fresh for every write") from error
    return no_content(HTTPStatus.CREATED)


@OPERATIONS.add(
    Operation(
        "DELETE",
        "/v1/runs/{run}/uploads/{upload}",
        "publish",
        "Give up an upload",
        {204: Says("It is gone, also where it was not there.")},
        parameters=(RUN, _UPLOAD, _KEY),
        refuses={400: "The key or the upload is not valid, or the store signs no requests."},
    )
)
async def abort_upload(request: Request, service: Service) -> Response:
    """Give up an upload."""
    run, upload_id, key = RUN(request), _decoded(_UPLOAD(request)), checked_key(_KEY(request))
    await service.call(_signer(service, run).abort_parts, key, upload_id)
    return no_content()


def _signer(service: Service, run: str) -> Presigner:
    signer = service.store_of(run).presigner()
    if signer is None:
        raise InvalidArgument(f"objects of {run!r} go through the service, in one piece: there are no parts")
    return signer


def _signed(service: Service, put: SignedPut, size: int) -> SignedRequest:
    service.metrics.signed.labels("put").inc()
    service.metrics.signed_bytes.labels("put").inc(size)
    return SignedRequest(url=put.url, headers=dict(put.headers))


# The ids of some stores hold characters that a path can't.
def _encoded(upload_id: str) -> str:
    return base64.urlsafe_b64encode(upload_id.encode()).decode().rstrip("=")


def _decoded(name: str) -> str:
    try:
        return base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidArgument(f"{name[:80]!r} is no upload of this service") from None
