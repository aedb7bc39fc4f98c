"""Presigned requests of S3: a URL that reads, a PUT that creates, an upload in parts. No bytes pass through."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Sequence
from typing import Any, Final

from pulse_registry.errors import InvalidArgument, NotFound
from pulse_registry.store.keys import check_key
from pulse_registry.store.parts import MAX_PARTS
from pulse_registry.store.presigner import SignedPut, UploadedPart
from pulse_registry.store.s3.errors import translated

_MAX_EXPIRES_S: Final = 7 * 24 * 3600
_MAX_PUT_BYTES: Final = 5 << 30
_SHA256: Final = re.compile("[0-9a-f]{64}")


class S3Signer:
    """The Presigner of a bucket: see there for what each method promises."""

    def __init__(self, client: Any, bucket: str, url: str) -> None:
        """Sign with a client's credentials, for a bucket.

        Args:
            client: boto3's.
            bucket: its name.
            url: what messages call it.
        """
        self._client = client
        self._bucket = bucket
        self._url = url

    def presign(self, key: str, expires_s: int) -> str:
        """Return a URL that reads the object for a while: see Presigner.presign."""
        check_key(key)
        return self._sign("get_object", key, expires_s, {})

    def presign_put(self, key: str, size: int, sha256: str, expires_s: int) -> SignedPut:
        """Return a PUT that creates the object: see Presigner.presign_put."""
        check_key(key)
        _check_size(key, size)
        checksum = _base64(sha256)
        params = {"IfNoneMatch": "*", "ContentLength": size, "ChecksumSHA256": checksum}
        headers = {"If-None-Match": "*", "Content-Length": str(size), "x-amz-checksum-sha256": checksum}
        return SignedPut(self._sign("put_object", key, expires_s, params), headers)

    def begin_parts(self, key: str) -> str:
        """Begin an upload in parts: see Presigner.begin_parts."""
        check_key(key)
        with translated("begin the upload of", key, self._url):
            answer = self._client.create_multipart_upload(Bucket=self._bucket, Key=key, ChecksumAlgorithm="SHA256")
        return str(answer["UploadId"])

    def presign_part(self, key: str, upload_id: str, number: int, size: int, sha256: str, expires_s: int) -> SignedPut:
        """Return a PUT that uploads a part: see Presigner.presign_part."""
        check_key(key)
        _check_size(key, size)
        if not 1 <= number <= MAX_PARTS:
            raise InvalidArgument(f"part {number} of {key!r}: parts are numbered from 1 to {MAX_PARTS}")
        checksum = _base64(sha256)
        params = {
            "UploadId": _upload(upload_id),
            "PartNumber": number,
            "ContentLength": size,
            "ChecksumSHA256": checksum,
        }
        headers = {"Content-Length": str(size), "x-amz-checksum-sha256": checksum}
        return SignedPut(self._sign("upload_part", key, expires_s, params), headers)

    def finish_parts(self, key: str, upload_id: str, parts: Sequence[UploadedPart]) -> None:
        """Make the object of its parts: see Presigner.finish_parts."""
        check_key(key)
        if not parts:
            raise InvalidArgument(f"the upload of {key!r} has no parts")
        listed = [
            {"PartNumber": part.number, "ETag": part.etag, "ChecksumSHA256": _base64(part.sha256)} for part in parts
        ]
        try:
            with translated("complete the upload of", key, self._url):
                self._client.complete_multipart_upload(
                    Bucket=self._bucket,
                    Key=key,
                    UploadId=_upload(upload_id),
                    MultipartUpload={"Parts": listed},
                    IfNoneMatch="*",
                )
        except NotFound as error:
            raise InvalidArgument(f"there is no upload {upload_id!r} of {key!r} in {self._url}") from error

    def abort_parts(self, key: str, upload_id: str) -> None:
        """Give up an upload: see Presigner.abort_parts."""
        check_key(key)
        with contextlib.suppress(NotFound), translated("give up the upload of", key, self._url):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=_upload(upload_id))

    def _sign(self, operation: str, key: str, expires_s: int, params: dict[str, Any]) -> str:
        if not 1 <= expires_s <= _MAX_EXPIRES_S:
            raise InvalidArgument(f"a signed request lasts from 1 to {_MAX_EXPIRES_S} seconds, not {expires_s}")
        with translated("sign a request for", key, self._url):
            return str(
                self._client.generate_presigned_url(
                    operation, Params={"Bucket": self._bucket, "Key": key, **params}, ExpiresIn=expires_s
                )
            )


def _check_size(key: str, size: int) -> None:
    if not 0 <= size <= _MAX_PUT_BYTES:
        raise InvalidArgument(f"{key!r}: one request uploads 0 to {_MAX_PUT_BYTES} bytes, not {size}")


def _upload(upload_id: str) -> str:
    if not upload_id:
        raise InvalidArgument("the id of the upload is empty")
    return upload_id


def _base64(sha256: str) -> str:
    """Return a SHA-256 in hex as S3's headers have it."""
    if not _SHA256.fullmatch(sha256):
        raise InvalidArgument(f"{sha256!r} is no SHA-256: 64 lower-case hex digits")
    return base64.b64encode(bytes.fromhex(sha256)).decode()
