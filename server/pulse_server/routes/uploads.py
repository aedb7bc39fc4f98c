"""Uploads: signed requests with which a trainer stores an object in the bucket, though it holds no key of it."""

from __future__ import annotations

import base64
import binascii
from http import HTTPStatus
from typing import Annotated, Final

from fastapi.responses import Response

from pulse_registry.errors import AlreadyExists, InvalidArgument
from pulse_registry.store.presigner import Presigner, SignedPut, UploadedPart
from pulse_schemas.api import CompleteRequest, PartDone, PartRequest, SignedRequest, UploadBody, UploadRequest
from pulse_server.routes import examples
from pulse_server.routes.contribution_size import check_size
from pulse_server.routes.dependencies import PublishRun, RunRequest
from pulse_server.routes.operation import answer, body_limit, operations, problem
from pulse_server.routes.params import checked_key, document, segment, text
from pulse_server.service import Service
from pulse_server.transport.answers import Rendered, no_content
from pulse_server.transport.urls import own_path

router = operations("uploads")
MAX_PARTS: Final = 10_000
COMPLETE_BYTES: Final = 2 << 20
"""Of the request that completes an upload of so many parts."""
_MIB: Final = 1 << 20
UploadName = Annotated[str, segment("an upload's id", "[A-Za-z0-9_-]{1,2048}", "dXBsb2FkLTE")]
ObjectKey = Annotated[str, text("the object's key", ".{1,1024}", examples.PATCH)]
SIGNED: Final = SignedRequest(
    url=examples.SIGNED,
    headers={"content-length": "81000000", "if-none-match": "*", "x-amz-checksum-sha256": "0dHR0Q=="},
)


UPLOAD: Final = UploadRequest(key=examples.PATCH, size=81_000_000, sha256=examples.SHA256)
PART: Final = PartRequest(key=examples.PATCH, number=1, size=64 * _MIB, sha256=examples.SHA256)
COMPLETE: Final = CompleteRequest(
    key=examples.PATCH, parts=(PartDone(number=1, etag='"5d41402a"', sha256=examples.SHA256),)
)


@router.post(
    "/v1/runs/{run}/uploads",
    status_code=201,
    summary="Begin an upload",
    description=("Without `sha256` the object goes in parts, or through the service."),
    response_model=UploadBody,
    responses={
        201: answer("How to store the object.", UploadBody(kind="put", request=SIGNED)),
        400: problem("The key is not valid, or the object is too large."),
    },
)
async def begin_upload(run: PublishRun, wanted: Annotated[UploadRequest, document(UPLOAD)]) -> Response:
    """Begin to store an object."""
    key = checked_key(wanted.key)
    await check_size(run, key, wanted.size)
    return await begun(run, key, wanted, own_path(run.name, key))


async def begun(run: RunRequest, key: str, wanted: UploadRequest, own: str) -> Response:
    """Return how to store an object of a run; ``own`` is where the service takes it itself, if the store can't sign."""
    service = run.service
    settings, signer = service.settings, service.store_of(run.name).presigner()
    if signer is None:
        body = UploadBody(kind="direct", request=SignedRequest(url=own, headers={}))
    elif wanted.sha256 is not None and wanted.size <= settings.single_put_bytes:
        put = await service.call(signer.presign_put, key, wanted.size, wanted.sha256, settings.url_ttl_s)
        body = UploadBody(kind="put", request=_signed(service, put, wanted.size))
    else:
        upload_id = await service.call(signer.begin_parts, key)
        part_size = max(settings.part_bytes, -(-wanted.size // MAX_PARTS // _MIB) * _MIB)
        body = UploadBody(kind="parts", upload_id=_encoded(upload_id), part_size=part_size)
    return Rendered.of(body, HTTPStatus.CREATED)


@router.post(
    "/v1/runs/{run}/uploads/{upload}/parts",
    summary="Get the request that stores one part",
    response_model=SignedRequest,
    responses={
        200: answer("The request to send.", SIGNED),
        400: problem("The key or the upload is not valid, or the store can't presign."),
    },
)
async def sign_part(run: PublishRun, upload: UploadName, part: Annotated[PartRequest, document(PART)]) -> Response:
    """Sign the request that stores a part."""
    key = checked_key(part.key)
    await check_size(run, key, part.number * part.size)  # all parts but the last are of one size
    return await signed(run, key, upload, part)


async def signed(run: RunRequest, key: str, upload: str, part: PartRequest) -> Response:
    """Return the request that stores a part of an object of a run."""
    service, upload_id, signer = run.service, _decoded(upload), _signer(run)
    put = await service.call(
        signer.presign_part, key, upload_id, part.number, part.size, part.sha256, service.settings.url_ttl_s
    )
    return Rendered.of(_signed(service, put, part.size))


@router.post(
    "/v1/runs/{run}/uploads/{upload}/complete",
    status_code=201,
    summary="Complete an upload in parts",
    response_class=Response,
    responses={
        201: answer("The object is stored."),
        400: problem("A part is missing or differs, or there is no such upload."),
        409: problem("The key is taken."),
    },
)
@body_limit(COMPLETE_BYTES, values=3 * MAX_PARTS + 1)
async def complete_upload(
    run: PublishRun, upload: UploadName, wanted: Annotated[CompleteRequest, document(COMPLETE)]
) -> Response:
    """Make an object of its parts."""
    return await completed(run, checked_key(wanted.key), upload, wanted)


async def completed(run: RunRequest, key: str, upload: str, wanted: CompleteRequest) -> Response:
    """Make an object of a run of its parts."""
    upload_id, signer = _decoded(upload), _signer(run)
    parts = [UploadedPart(part.number, part.etag, part.sha256) for part in wanted.parts]
    try:
        await run.service.call(signer.finish_parts, key, upload_id, parts)
    except AlreadyExists as error:
        raise AlreadyExists(f"run {run.name!r} has {key} already: keys are fresh for every write") from error
    return no_content(HTTPStatus.CREATED)


@router.delete(
    "/v1/runs/{run}/uploads/{upload}",
    status_code=204,
    summary="Abort an upload",
    response_class=Response,
    responses={
        204: answer("The upload is aborted; also if there was none."),
        400: problem("The key or the upload is not valid, or the store can't presign."),
    },
)
async def abort_upload(run: PublishRun, upload: UploadName, key: ObjectKey) -> Response:
    """Give up an upload."""
    return await aborted(run, checked_key(key), upload)


async def aborted(run: RunRequest, key: str, upload: str) -> Response:
    """Give up an upload of an object of a run."""
    await run.service.call(_signer(run).abort_parts, key, _decoded(upload))
    return no_content()


def _signer(run: RunRequest) -> Presigner:
    signer = run.service.store_of(run.name).presigner()
    if signer is None:
        raise InvalidArgument(f"objects of {run.name!r} go through the service, in one piece: there are no parts")
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
