"""Large objects go up in parts: several at a time, each with its checksum and its own retries, all or nothing.

A Stream's parts are buffered as it makes them; no more of them than there are threads, and one, are in memory.
What is Growing goes up as it grows: its first part, which begins with what is known last, is sent last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pulse_registry.errors import NotFound, PulseError, StoreUnavailable
from pulse_registry.process.parallel import parallel_map
from pulse_registry.store.body import Body, body_size
from pulse_registry.store.parts import Part, growing_parts, part_size, parts_of
from pulse_registry.store.s3.body import Parcel, crc32
from pulse_registry.store.s3.errors import translated
from pulse_registry.store.streaming_body import Growing
from pulse_registry.store.watchdog import LowSpeedLimit
from pulse_registry.store.wrappers.retry import RetryPolicy

LEAST_PART_BYTES: Final = 5 << 20
"""S3's rule for all parts but the last."""


@dataclass(frozen=True, slots=True)
class Upload:
    """How objects go up in parts: to which bucket, by which client, how large and how many at a time."""

    client: Any
    bucket: str
    url: str
    part_bytes: int
    threads: int
    low_speed: LowSpeedLimit
    retries: RetryPolicy

    def put(self, key: str, data: Body, *, if_absent: bool) -> None:
        """Upload an object in parts; what was uploaded is given up if that fails.

        Raises:
            As Store.put.
        """
        parts = parts_of(data, part_size(body_size(data), self.part_bytes))
        self._put(key, data, enumerate(parts, 1), if_absent=if_absent)

    def grow(self, key: str, data: Growing, *, if_absent: bool) -> None:
        """Upload an object that `reaches` more than a part while it is made; otherwise as `put`.

        Raises:
            InvalidArgument: the store takes no parts of different sizes, or as `put`.
            Others as `put`.
        """
        data.sending()
        self._put(key, data, growing_parts(data, LEAST_PART_BYTES, self.part_bytes), if_absent=if_absent)

    def _put(self, key: str, data: Body, parts: Iterable[Part], *, if_absent: bool) -> None:
        upload_id = self.retries(lambda: self._begin(key))
        try:
            sent = self._send(key, upload_id, parts)
            self._finish(key, upload_id, sent, size=body_size(data), if_absent=if_absent)
        except BaseException:
            with contextlib.suppress(PulseError):
                self._abort(key, upload_id)
            raise

    def _begin(self, key: str) -> str:
        with translated("begin the upload of", key, self.url):
            answer = self.client.create_multipart_upload(Bucket=self.bucket, Key=key, ChecksumAlgorithm="CRC32")
        return str(answer["UploadId"])

    def _send(self, key: str, upload_id: str, parts: Iterable[Part]) -> list[dict[str, Any]]:
        """Send all parts, as many at a time as there are threads; return what the store answered, by number."""

        def send(part: Part) -> dict[str, Any]:
            return self.retries(lambda: self._send_part(key, upload_id, *part))

        with parallel_map(self.threads, "pulse-upload") as map_:
            return sorted(map_(send, parts), key=lambda part: int(part["PartNumber"]))

    def _send_part(self, key: str, upload_id: str, number: int, views: Sequence[memoryview]) -> dict[str, Any]:
        checksum = crc32(views)
        what = f"put of {key!r} in {self.url}, part {number}"
        with translated(f"put part {number} of", key, self.url):
            answer = self.client.upload_part(
                Bucket=self.bucket,
                Key=key,
                UploadId=upload_id,
                PartNumber=number,
                Body=Parcel(views, self.low_speed, what),
                ChecksumCRC32=checksum,
            )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": checksum}

    def _finish(self, key: str, upload_id: str, parts: Sequence[dict[str, Any]], *, size: int, if_absent: bool) -> None:
        """Make the object of its parts; if the answer is lost, the upload may be gone because that has succeeded."""
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        asked = 0

        def finish() -> None:
            nonlocal asked
            asked += 1
            with translated("complete the upload of", key, self.url):
                self.client.complete_multipart_upload(
                    Bucket=self.bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}, **condition
                )

        try:
            self.retries(finish)
        except NotFound as error:
            if asked == 1 or not self._has_size(key, size):
                raise StoreUnavailable(f"the upload of {key!r} to {self.url} is gone; put it again") from error

    def _has_size(self, key: str, size: int) -> bool:
        try:
            return self.retries(lambda: self._size(key)) == size
        except NotFound:
            return False

    def _size(self, key: str) -> int:
        with translated("size", key, self.url):
            return int(self.client.head_object(Bucket=self.bucket, Key=key)["ContentLength"])

    def _abort(self, key: str, upload_id: str) -> None:
        with translated("give up the upload of", key, self.url):
            self.client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload_id)
