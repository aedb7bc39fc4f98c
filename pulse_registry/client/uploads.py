"""Storing objects through the service: by signed requests to the bucket, or by the service where it can't sign."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from urllib.parse import quote

from pulse_registry.client.api import ServiceApi
from pulse_registry.client.http_body import content_digest
from pulse_registry.client.presigned import PresignedRequests, SignatureRefused
from pulse_registry.client.presigned_urls import own_path
from pulse_registry.client.routes import run_path
from pulse_registry.client.transport import MOST_PROBLEM_BYTES, BodyTransfer
from pulse_registry.errors import AlreadyExists, InvalidArgument, PulseError, UnsupportedFormat
from pulse_registry.process.parallel import parallel_map
from pulse_registry.store.body import Body, Stream, body_size, body_views
from pulse_registry.store.parts import MAX_PARTS, Part, parts_of
from pulse_registry.store.wrappers.retry import RetryPolicy
from pulse_schemas.api import CompleteRequest, PartDone, PartRequest, SignedRequest, UploadBody, UploadRequest

_logger = logging.getLogger(__name__)

HELD_BYTES: Final = 64 << 20
"""A stream up to this size is held as a whole, to be hashed before it is announced."""
IN_FLIGHT_BYTES: Final = 256 << 20
"""Parts under way take about so much memory together; one at least, eight at most."""
_COMPLETE_S: Final = 120.0
_STORED_S: Final = 5.0
"""The service has written as it received: a longer wait would leave no time to try again."""


class Uploads:
    """Stores objects of runs. Thread-safe."""

    def __init__(
        self,
        api: ServiceApi,
        bucket: PresignedRequests,
        retries: RetryPolicy,
        *,
        folder: str = "",
        held_bytes: int = HELD_BYTES,
        most_bytes: int = IN_FLIGHT_BYTES,
    ) -> None:
        """Store through a service.

        Args:
            api: says where to send an object.
            bucket: sends it there.
            retries: what repeats the requests of an upload in parts.
            folder: of a run's paths in which uploads are begun, with its slash.
            held_bytes: a stream up to this size is held as a whole; of a longer one, a part is no longer than this
                where the service says it may.
            most_bytes: that parts under way take together; one part at least is under way.
        """
        self._api = api
        self._bucket = bucket
        self._retries = retries
        self._folder, self._held_bytes, self._most_bytes = folder, held_bytes, most_bytes

    def put(self, run: str, key: str, data: Body) -> None:
        """Create an object, all or nothing.

        Raises:
            AlreadyExists: the key is taken; perhaps by this caller, whose answer was lost.
            AccessDenied, InvalidArgument, StoreUnavailable: as `Store.put`.
        """
        size = body_size(data)
        views = _held(data, size, self._held_bytes)
        sha256 = None if views is None else _sha256(views)
        try:
            self._send(run, key, data, views, size, sha256)
        except SignatureRefused:  # it may have expired on the way
            self._send(run, key, data, views, size, sha256)

    def _send(
        self, run: str, key: str, data: Body, views: Sequence[memoryview] | None, size: int, sha256: str | None
    ) -> None:
        announced = UploadRequest(key=key, size=size, sha256=sha256)
        upload = self._api.json(UploadBody, "POST", f"{run_path(run)}/{self._folder}uploads", body=announced)
        if upload.kind == "put" and upload.request is not None and views is not None:
            self._bucket.put(upload.request, key, views)
        elif upload.kind == "direct" and upload.request is not None:
            self._send_direct(upload.request, key, body_views(data) if views is None else views, size, sha256)
        elif upload.kind == "parts" and upload.upload_id is not None and upload.part_size:
            part_size = min(upload.part_size, max(self._held_bytes, -(-size // MAX_PARTS)), max(1, size))
            if not size / MAX_PARTS <= part_size <= IN_FLIGHT_BYTES:
                raise UnsupportedFormat(
                    f"{self._api.url} wants {key!r}, of {size} bytes, in parts of {upload.part_size}; upgrade the older"
                )
            parts = parts_of(data if views is None else views, part_size)
            path = f"{run_path(run)}/{self._folder}uploads/{quote(upload.upload_id, safe='')}"
            at_once = max(1, min(8, self._most_bytes // part_size))
            _PartsUpload(self._api, self._bucket, self._retries, path, key).send(parts, at_once)
        else:
            raise UnsupportedFormat(
                f"{self._api.url} does not say how to store {key!r} in a way that this release knows; upgrade the older"
            )

    def _send_direct(
        self, request: SignedRequest, key: str, views: Iterable[memoryview], size: int, sha256: str | None
    ) -> None:
        path = own_path(request.url)
        if path is None:
            raise UnsupportedFormat(f"{self._api.url} wants {key!r} sent to another server, with the token; refused")
        headers = {**request.headers, "Content-Length": str(size), "Content-Type": "application/octet-stream"}
        if sha256 is not None:
            headers["Content-Digest"] = content_digest(bytes.fromhex(sha256))
        body = BodyTransfer(self._api.timeouts, f"{self._api.url}: {key}").sent(views)
        with self._api.stream("PUT", path, headers=headers, content=body, wait_s=_STORED_S) as response:
            for _ in BodyTransfer(self._api.timeouts, f"{self._api.url}: {key}").received(response, MOST_PROBLEM_BYTES):
                pass


class _PartsUpload:
    """One object on its way in parts: several at a time, each tried again alone."""

    def __init__(self, api: ServiceApi, bucket: PresignedRequests, retries: RetryPolicy, path: str, key: str) -> None:
        self._api = api
        self._bucket = bucket
        self._retries = retries
        self._path, self._key = path, key

    def send(self, parts: Iterator[Sequence[memoryview]], at_once: int) -> None:
        """Send all parts, so many at a time, and complete the object, or give the upload up."""
        try:
            done = self._send_all(parts, at_once)
            self._complete(CompleteRequest(key=self._key, parts=tuple(done)))
        except BaseException:
            self._give_up()
            raise

    def _send_all(self, parts: Iterator[Sequence[memoryview]], at_once: int) -> list[PartDone]:
        with parallel_map(at_once, "pulse-part") as map_:
            return [*map_(self._send_part, enumerate(parts, 1))]

    def _send_part(self, numbered: Part) -> PartDone:
        number, part = numbered
        sha256, size = _sha256(part), sum(view.nbytes for view in part)
        request = PartRequest(key=self._key, number=number, size=size, sha256=sha256)

        def send() -> str:
            signed = self._api.json(SignedRequest, "POST", f"{self._path}/parts", body=request)
            return self._bucket.put(signed, f"{self._key}, part {number}", part)

        def attempt() -> str:
            try:
                return send()
            except SignatureRefused:  # it may have expired on the way
                return send()

        return PartDone(number=number, etag=self._retries(attempt), sha256=sha256)

    def _complete(self, request: CompleteRequest) -> None:
        body, tried = request.model_dump_json().encode(), 0

        def attempt() -> None:
            nonlocal tried
            tried += 1
            try:
                self._api.ask("POST", f"{self._path}/complete", body=body, wait_s=_COMPLETE_S)
            except InvalidArgument as error:
                if tried > 1:  # the first request may have done it: then there is no such upload any more
                    raise AlreadyExists(f"{self._key}: {error}") from error
                raise

        self._retries(attempt)

    def _give_up(self) -> None:
        try:
            self._api.ask("DELETE", self._path, params={"key": self._key})
        except PulseError as error:
            _logger.warning("%s: its parts are left to the bucket's own clean-up: %s", self._key, error)


def _held(data: Body, size: int, most: int) -> Sequence[memoryview] | None:
    """Return the views of a body that is in memory, or small enough to be; None for a long stream."""
    if not isinstance(data, Stream):
        return tuple(body_views(data))
    return [memoryview(b"".join(body_views(data)))] if size <= most else None


def _sha256(views: Iterable[memoryview]) -> str:
    hasher = hashlib.sha256()
    for view in views:
        hasher.update(view)
    return hasher.hexdigest()
