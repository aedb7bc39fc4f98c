"""A service's copies of runs as a store: what a mirror writes to, where it holds no keys of the bucket.

To a mirror it is the bucket, as far as a mirror's rights go (`pulse_registry.mirror.rights`): the service does what it
is asked for there, and refuses the rest. Shared bases, which belong to no run, are not among it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Final
from urllib.parse import quote

from pulse_registry.client.api import ServiceApi
from pulse_registry.client.presigned import PresignedRequests
from pulse_registry.client.routes import run_path
from pulse_registry.client.store import ServiceStore
from pulse_registry.client.transport import Timeouts
from pulse_registry.client.uploads import Uploads
from pulse_registry.errors import AlreadyExists, InvalidArgument, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.log.names import RUN_NAME
from pulse_registry.store.base import MOST_WHOLE_BYTES, Store
from pulse_registry.store.body import Body, body_views
from pulse_registry.store.checks import ByteRange, check_range
from pulse_registry.store.http_dates import http_date
from pulse_registry.store.keys import check_key, check_prefix
from pulse_registry.store.wrappers.retry import RetryPolicy
from pulse_schemas import BASES
from pulse_schemas.api import KeyList

_PART_BYTES: Final = 8 << 20
_PARTS_BYTES: Final = 5 * _PART_BYTES
"""Of one object on its way up: a mirror has many, and little memory."""


class CopyStore(Store):
    """A Store of the copies of a service. Thread-safe.

    What is created is never replaced, and what is replaced is never only created: who asks for the other is told so.
    """

    def __init__(self, url: str, token: str | None = None, *, allow_http: bool = False) -> None:
        """Prepare to ask a service; no I/O yet. See `ServiceStore`; the token is of scope ``mirror``."""
        timeouts = Timeouts()
        self._api = ServiceApi(url, token, timeouts, allow_http=allow_http)
        self.url = self._api.url
        self._bucket = PresignedRequests(timeouts)
        self._objects = ServiceStore(url, token, timeouts=timeouts, allow_http=allow_http)
        self._uploads = Uploads(
            self._api, self._bucket, RetryPolicy(), folder="copy/", held_bytes=_PART_BYTES, most_bytes=_PARTS_BYTES
        )

    def close(self) -> None:
        """Close the connections; the store can't be used any more. Idempotent."""
        self._objects.close()
        self._bucket.close()
        self._api.close()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range: see Store.get."""
        run, below = self._split(key)
        if _is_by_url(below):
            return self._objects.get(key, byte_range, max_bytes=max_bytes)
        if byte_range is not None:
            check_range(key, byte_range)
            raise InvalidArgument(f"{key!r} is a document, which a service gives out whole")
        return self._api.ask("GET", _key_path(run, below), most=max_bytes).body

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write what a mirror writes: see Store.put.

        Raises:
            AlreadyExists: the object, or another record, is there.
            Conflict: the run is no copy; or a record comes too early.
            InvalidArgument: a mirror does not write this, or the service does not take the record.
        """
        run, below = self._split(key)
        record = keys.record_seq(below.removeprefix(keys.OUTER)) is not None
        if record or below == keys.MIRROR or not _is_large(below):
            if if_absent != (record or below == keys.MIRROR):
                raise InvalidArgument(f"{key!r}: records and the mark are only created, and hints only replaced")
            self._api.ask("PUT", _key_path(run, below), body=b"".join(body_views(data)))
        elif if_absent:
            self._uploads.put(run, below, data)
        else:
            with suppress(AlreadyExists):  # a snapshot, or a segment: another mirror's says the same
                self._uploads.put(run, below, data)

    def size(self, key: str) -> int:
        """Return the object's size in bytes: see Store.size."""
        length = self._headers(key).get("content-length", "")
        if not length.isdecimal():
            raise StoreUnavailable(f"{self.url}: {key}: the answer does not say how long it is")
        return int(length)

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, by the clock of the service's store: see Store.modified."""
        found = http_date(self._headers(key).get("last-modified", ""))
        if found is None:
            raise StoreUnavailable(f"{self.url}: {key}: the answer does not say when it was written")
        return found

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the keys of one run that begin with a string: see Store.list."""
        check_prefix(prefix)
        run, slash, below = prefix.partition("/")
        if not slash or not RUN_NAME.fullmatch(run):
            raise InvalidArgument(f"a service lists the keys of a run, under <run>/, not {prefix!r}")
        behind = "" if after is None or after < prefix else after.removeprefix(f"{run}/")
        if behind and after is not None and not after.startswith(f"{run}/"):
            return iter(())  # behind all that begin so
        return self._pages(run, below, behind)

    def delete(self, key: str) -> None:
        """Remove what a mirror may remove: see Store.delete.

        Raises:
            Conflict: the run is no copy.
            InvalidArgument: a mirror does not delete this.
        """
        run, below = self._split(key)
        self._api.ask("DELETE", _key_path(run, below))

    def _pages(self, run: str, prefix: str, after: str) -> Iterator[str]:
        more = True
        while more:
            params = {"prefix": prefix, **({"after": after} if after else {})}
            page = self._api.json(KeyList, "GET", f"{run_path(run)}/copy/keys", params=params)
            for key in page.keys:
                yield f"{run}/{key}"
            more = page.more and bool(page.keys)
            after = page.keys[-1] if page.keys else after

    def _headers(self, key: str) -> dict[str, str]:
        run, below = self._split(key)
        with self._api.stream("HEAD", _key_path(run, below)) as response:
            return {name.lower(): value for name, value in response.headers.items()}

    def _split(self, key: str) -> tuple[str, str]:
        """Return the run of a key, and the key below it."""
        check_key(key)
        run, _, below = key.partition("/")
        if key.startswith(BASES):
            raise InvalidArgument(
                f"{key!r}: a shared base belongs to no run, and no service takes copies of it: mirror runs that name "
                "one to the bucket itself"
            )
        if not RUN_NAME.fullmatch(run) or not below:
            raise InvalidArgument(f"{key!r} is no key of a run")
        return run, below


def _is_by_url(below: str) -> bool:
    return keys.segment_of(below) is not None or keys.is_object_key(below.removeprefix(keys.OUTER))


def _is_large(below: str) -> bool:
    folders = (keys.LAYOUTS, keys.SNAPSHOTS, keys.OUTER + keys.SNAPSHOTS)
    return _is_by_url(below) or below.startswith(folders)


def _key_path(run: str, below: str) -> str:
    return f"{run_path(run)}/copy/keys/{quote(below)}"
