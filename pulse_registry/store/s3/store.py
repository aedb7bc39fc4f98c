"""A store in a bucket of S3, or of any store that speaks its protocol.

Exactly one writer wins a create by `If-None-Match: *`, with the bucket as the only judge. Nothing is cached, and each
request is sent once: RetryStore, around this, repeats. ADR 0006 says why the client is boto3.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pulse_registry.errors import InvalidArgument, NotFound, StoreUnavailable
from pulse_registry.store.base import MOST_WHOLE_BYTES, Store
from pulse_registry.store.body import Body, Buffer, Stream, body_size, body_views
from pulse_registry.store.checks import (
    ByteRange,
    already_exists,
    check_buffer,
    check_range,
    check_whole,
    too_short,
)
from pulse_registry.store.keys import check_key, check_prefix
from pulse_registry.store.presigner import Presigner
from pulse_registry.store.s3.body import Parcel, crc32, receive
from pulse_registry.store.s3.client import STREAM, make_client
from pulse_registry.store.s3.errors import translated
from pulse_registry.store.s3.listing import Listing
from pulse_registry.store.s3.location import S3Location
from pulse_registry.store.s3.misses import Misses
from pulse_registry.store.s3.presign import S3Signer
from pulse_registry.store.s3.upload import LEAST_PART_BYTES, Upload
from pulse_registry.store.streaming_body import Growing
from pulse_registry.store.watchdog import LowSpeedLimit
from pulse_registry.store.wrappers.retry import RetryPolicy

PART_BYTES: Final = 16 << 20
THREADS: Final = 4
ANSWER_S: Final = 20.0
_JOINED_BYTES: Final = 1 << 20
_JOINED_VIEW_BYTES: Final = 16 << 10
_MAX_POSITION: Final = 1 << 62


class S3Store(Store):
    """A Store over a bucket, which can presign.

    Uploads carry a CRC32 that the store checks; downloads are as long as the store and the caller say, and whoever
    reads them checks their BLAKE3. A put above ``part_bytes`` goes up in parts and holds at most ``threads + 1`` of
    them in memory (80 MiB, unless the object has more than 160 GB). What is Growing goes up while it grows, once it
    has more than two parts.
    """

    def __init__(
        self,
        place: S3Location,
        *,
        part_bytes: int = PART_BYTES,
        threads: int = THREADS,
        answer_s: float = ANSWER_S,
        low_speed: LowSpeedLimit | None = None,
        part_retries: RetryPolicy | None = None,
        page_keys: int = 1000,
    ) -> None:
        """Open a bucket, which must exist. Nothing is sent before the first use.

        Args:
            place: the bucket, and how to get to it.
            part_bytes: objects above this size go up in parts of it, at least 5 MiB (which is S3's rule).
            threads: how many parts of a put are under way at a time.
            answer_s: a request is given up when the store says nothing for so long.
            low_speed: a transfer below it is given up; None: 64 KiB/s over 10 s.
            part_retries: what repeats the requests of an upload in parts; None: the bounds of RetryStore.
            page_keys: how many keys a listing asks for at a time, at most 1,000.

        Raises:
            InvalidArgument: an argument or the configuration of the environment is not valid, or boto3 is missing.
        """
        if part_bytes < LEAST_PART_BYTES or threads < 1 or answer_s <= 0 or not 1 <= page_keys <= 1000:
            raise InvalidArgument(
                f"part_bytes is at least {LEAST_PART_BYTES}, threads and answer_s are positive, page_keys is 1 to 1000"
            )
        self._place, self.url = place, place.url
        self._part_bytes = part_bytes
        self._low_speed = low_speed or LowSpeedLimit()
        self._client = make_client(place, answer_s)
        self._listing = Listing(self._client, place.bucket, place.url, page_keys)
        self._upload = Upload(
            client=self._client,
            bucket=place.bucket,
            url=place.url,
            part_bytes=part_bytes,
            threads=threads,
            low_speed=low_speed or LowSpeedLimit(),
            retries=part_retries or RetryPolicy(),
        )
        self._misses = Misses(self._client, place.bucket, place.url)
        self._wants_even_parts = False
        self._signer = S3Signer(self._client, place.bucket, place.url)

    def __repr__(self) -> str:
        """Show the class and the place."""
        return f"{type(self).__name__}({self._place!r})"

    # reading

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range: see Store.get."""
        check_key(key)
        if byte_range is not None:
            check_range(key, byte_range)
            if not self._asks_for_bytes(key, byte_range):
                return b""
        with translated("get", key, self.url):
            body, stream, size = self._open(key, byte_range, max_bytes)
            try:
                # One allocation: BytesIO hands out the very bytes that it was made of.
                kept = io.BytesIO(bytes(size))
            except (MemoryError, OverflowError) as error:
                body.close()
                raise StoreUnavailable(f"{key!r} in {self.url} has {size} bytes, too many for this process") from error
            with kept.getbuffer() as view:
                receive(body, stream, view, self._low_speed, self._transfer("get", key))
        return kept.getvalue()

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        """Read a range into a buffer: see Store.get_into."""
        check_key(key)
        view = check_buffer(key, byte_range, buffer)
        if not self._asks_for_bytes(key, byte_range):
            return
        with translated("get", key, self.url):
            body, stream, _ = self._open(key, byte_range, 0)
            receive(body, stream, view, self._low_speed, self._transfer("get", key))

    def size(self, key: str) -> int:
        """Return the object's size in bytes: see Store.size."""
        check_key(key)
        with translated("size", key, self.url):
            return int(self._client.head_object(Bucket=self._place.bucket, Key=key)["ContentLength"])

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, by the store's clock, to the second: see Store.modified."""
        check_key(key)
        with translated("size", key, self.url):
            written: datetime = self._client.head_object(Bucket=self._place.bucket, Key=key)["LastModified"]
        return written.astimezone(UTC)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the keys that begin with a string, page by page as they are asked for: see Store.list."""
        check_prefix(prefix)
        return self._listing.keys(prefix, after or "")

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the folders behind a prefix, a page of 1,000 names at a time: see Store.folders."""
        check_prefix(prefix)
        return self._listing.folders(prefix, after or "")

    # writing

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object, all or nothing: see Store.put."""
        check_key(key)
        two_parts = LEAST_PART_BYTES + self._part_bytes
        if isinstance(data, Growing) and not self._wants_even_parts and data.reaches(two_parts):
            self._grow(key, data, if_absent=if_absent)
        else:
            self._put(key, data, if_absent=if_absent)

    def delete(self, key: str) -> None:
        """Remove an object if it is there: see Store.delete."""
        check_key(key)
        try:
            with translated("delete", key, self.url):
                self._client.delete_object(Bucket=self._place.bucket, Key=key)
        except NotFound:
            return

    def presigner(self) -> Presigner:
        """Return what signs requests for this bucket's objects."""
        return self._signer

    # how

    def _asks_for_bytes(self, key: str, byte_range: ByteRange) -> bool:
        """Tell whether a range is one that HTTP can ask for; the others are checked against the object's size."""
        start, stop = byte_range
        if start < stop <= _MAX_POSITION:
            return True
        size = self.size(key)
        if stop > size:
            raise too_short(key, self.url, byte_range, size)
        return False

    def _open(self, key: str, byte_range: ByteRange | None, max_bytes: int) -> tuple[Any, Any, int]:
        """Ask for an object, or a range; return body and stream, unread, and its size, which is what was asked for."""
        if byte_range is None:
            answer = self._misses.get(key)
            try:
                size = int(answer.get("ContentLength", -1))
                if size < 0:
                    raise StoreUnavailable(f"could not get {key!r} in {self.url}: the store did not say its size")
                check_whole(key, self.url, size, max_bytes)
            except BaseException:
                answer["Body"].close()
                raise
            return answer["Body"], answer[STREAM], size
        start, stop = byte_range
        answer = self._client.get_object(Bucket=self._place.bucket, Key=key, Range=f"bytes={start}-{stop - 1}")
        body, length, part = answer["Body"], answer.get("ContentLength"), answer.get("ContentRange")
        try:
            total = _total(part, start, stop, length)
            if total is None:
                raise StoreUnavailable(
                    f"could not get bytes {start} to {stop} of {key!r} in {self.url}: the store answered with "
                    f"{length} bytes, range {part!r}; try again"
                )
            if total < stop:
                raise too_short(key, self.url, byte_range, total)
        except BaseException:
            body.close()
            raise
        return body, answer[STREAM], stop - start

    def _put(self, key: str, data: Body, *, if_absent: bool) -> None:
        size = body_size(data)
        if size <= self._part_bytes:
            self._put_whole(key, data, size, if_absent=if_absent)
        else:
            self._check_free(key, if_absent)
            self._upload.put(key, data, if_absent=if_absent)

    def _grow(self, key: str, data: Growing, *, if_absent: bool) -> None:
        self._check_free(key, if_absent)
        try:
            self._upload.grow(key, data, if_absent=if_absent)
        except InvalidArgument:
            # R2 wants all parts but the last to be of one size; where something else was wrong, this fails again.
            self._put(key, data, if_absent=if_absent)
            self._wants_even_parts = True

    def _check_free(self, key: str, if_absent: bool) -> None:
        """Raise AlreadyExists for a create of what is there, so that nothing large goes up in vain."""
        if if_absent and self.exists(key):
            raise already_exists(key, self.url)

    def _put_whole(self, key: str, data: Body, size: int, *, if_absent: bool) -> None:
        views: Sequence[memoryview]
        if isinstance(data, Stream):
            views = [memoryview(b"".join(bytes(view) for view in body_views(data)))]
        else:
            views = tuple(body_views(data))
        content: bytes | Parcel
        # A parcel asks the store whether it wants it before it is sent: a round trip, in vain for what is small.
        if size <= _JOINED_BYTES or len(views) > size // _JOINED_VIEW_BYTES:
            content = b"".join(views)
            views = [memoryview(content)]
        checksum = crc32(views)
        if size > _JOINED_BYTES:
            content = Parcel(views, self._low_speed, self._transfer("put", key))
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        with translated("put", key, self.url):
            self._client.put_object(
                Bucket=self._place.bucket, Key=key, Body=content, ChecksumCRC32=checksum, **condition
            )

    def _transfer(self, verb: str, key: str) -> str:
        return f"{verb} of {key!r} in {self.url}"


def _total(content_range: str | None, start: int, stop: int, length: int | None) -> int | None:
    """Return an object's size out of the answer to a range; None if that is no answer to it."""
    if content_range is None:
        # The whole object instead of the range: good where they are the same.
        return length if start == 0 and length == stop else None
    unit, _, rest = content_range.partition(" ")
    span, _, total = rest.partition("/")
    first, _, last = span.partition("-")
    if unit != "bytes" or not (total.isdecimal() and first.isdecimal() and last.isdecimal()):
        return None
    answered = (int(first), int(last) + 1, int(last) + 1 - int(first))
    return int(total) if answered == (start, min(stop, int(total)), length) else None
