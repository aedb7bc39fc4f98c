"""The service as a store: what a bucket would hold, reached through ``https://`` with a token and no bucket keys.

Reads of a run's log go to the service, reads and writes of its objects to the bucket by signed requests, and the
create-if-absent of the next record becomes a request that the service checks before it appends.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from pulse_registry.client.api import ServiceApi
from pulse_registry.client.http_body import range_header, read_range, read_size
from pulse_registry.client.presigned import PresignedRequests, SignatureRefused
from pulse_registry.client.presigned_urls import PresignedUrl, PresignedUrls, own_path
from pulse_registry.client.records import Records
from pulse_registry.client.routes import (
    Resource,
    checked_worker,
    countersigned_of,
    log_path,
    resource_of,
    run_path,
    snapshots_of,
    snapshots_path,
)
from pulse_registry.client.transport import BodyTransfer, Timeouts
from pulse_registry.client.uploads import Uploads
from pulse_registry.errors import CorruptObject, InvalidArgument, NotFound, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.log.documents import most_bytes
from pulse_registry.process.fork import only_in_this_process
from pulse_registry.store.base import MOST_WHOLE_BYTES, Store
from pulse_registry.store.body import Body, Buffer, body_views
from pulse_registry.store.checks import ByteRange, check_buffer, check_range
from pulse_registry.store.gateway import Gateway
from pulse_registry.store.wrappers.retry import RetryPolicy
from pulse_schemas.api import (
    BaseBody,
    BaseRequest,
    CountersignatureList,
    SnapshotList,
    WorkerBody,
    WorkerList,
    WorkerReport,
)

_BY_URL: Final = ("object", "segment")
"""What is read by URLs, from the bucket where it can sign them."""
_COPY_S: Final = 60.0
"""That a service may take longer than other answers do, to copy one more file of a base."""
_LISTED_BYTES: Final = 4 << 20
"""Of a list of numbers: of snapshots, one in 64 of millions of records, or of countersigned records."""

_LISTED_VALUES: Final = 1_000_000
"""Of a list of workers: ten thousand have some sixty each, of which sixteen phases are most."""

T = TypeVar("T")
L = TypeVar("L", SnapshotList, CountersignatureList)


class ServiceStore(Store):
    """A Store and a Gateway: the runs of a service. Thread-safe.

    It holds logs, layouts, objects and leases of runs and nothing else, and deletes leases alone. An object, once
    there, is never replaced: to put the same bytes again is no error, to put others is AlreadyExists.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeouts: Timeouts | None = None,
        allow_http: bool = False,
        part_retries: RetryPolicy | None = None,
    ) -> None:
        """Prepare to ask a service; no I/O yet.

        Args:
            url: ``https://host[:port][/prefix]``.
            token: of the caller; it is sent to this URL alone.
            timeouts: limits of each request.
            allow_http: the token may go over ``http://`` to another machine, too.
            part_retries: what repeats the requests of an upload in parts; None: the bounds of RetryStore.

        Raises:
            InvalidArgument: the URL or the token is not valid, or the token would go in clear.
        """
        timeouts = timeouts or Timeouts()
        self._api = ServiceApi(url, token, timeouts, allow_http=allow_http)
        self.url = self._api.url
        self._bucket = PresignedRequests(timeouts)
        self._urls = PresignedUrls(self._api)
        self._records, self._outer_records = Records(self._api, urls=self._urls), Records(self._api, keys.OUTER)
        self._uploads = Uploads(self._api, self._bucket, part_retries or RetryPolicy())
        self._closed = threading.Event()
        # Whoever forgets to close it leaves no open connections behind.
        self._finalizer = weakref.finalize(self, only_in_this_process(partial(_close, self._api, self._bucket)))

    def close(self) -> None:
        """Close the connections; the store can't be used any more. Idempotent."""
        self._closed.set()
        self._finalizer()

    # -- Store -----------------------------------------------------------------------------------------------------

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range: see Store.get."""
        resource = self._resource(key)
        if byte_range is not None:
            check_range(key, byte_range)
        if resource.kind in _BY_URL:
            if byte_range is not None and byte_range[0] == byte_range[1]:
                return _cut(b"", key, byte_range, self._object_size(resource))
            return self._object(resource, byte_range, max_bytes)
        data = self._document(resource, max_bytes if byte_range is None else most_bytes(resource.key))
        return data if byte_range is None else _cut(data, key, byte_range, len(data))

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        """Read a range of an object into a buffer of its size: see Store.get_into."""
        resource, view = self._resource(key), check_buffer(key, byte_range, buffer)
        signed = self._urls.of(resource.run, resource.key) if resource.kind in _BY_URL and view.nbytes else None
        if signed is None or signed.own:
            view[:] = self.get(key, byte_range)
            return
        self._from_bucket(resource, signed, lambda url: self._bucket.get_into(url, resource.key, byte_range, view))

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Append a record, or store a layout, an object, a lease or a request: see Store.put.

        Objects are only created, with ``if_absent`` or without. A layout that is there already is no error: its name is
        the hash of its bytes.

        Raises:
            AlreadyExists: the object, or another record, is there.
            Fenced, Conflict, InvalidArgument: the service does not append this record.
            InvalidArgument: it is none of these; the service keeps the rest itself.
        """
        resource = self._resource(key)
        match resource.kind:
            case "record" if if_absent:
                body = b"".join(body_views(data))
                self._api.ask("POST", log_path(resource.run, resource.folder), body=body)
            case "layout" | "lease" | "request":
                self._api.ask("PUT", resource.path, body=b"".join(body_views(data)))
            case "object":
                self._uploads.put(resource.run, resource.key, data)
            case "record":
                raise InvalidArgument(f"{key!r} is a record, which is only created, with if_absent")
            case _:
                raise InvalidArgument(f"{key!r}: the service at {self.url} keeps this itself")

    def size(self, key: str) -> int:
        """Return the object's size in bytes: see Store.size."""
        resource = self._resource(key)
        return (
            self._object_size(resource)
            if resource.kind in _BY_URL
            else len(self._document(resource, most_bytes(resource.key)))
        )

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the snapshots of a log, or the countersignatures of a run: all that is listed; see Store.list.

        Of very many these are the newest.
        """
        self._check_open()
        found: tuple[int, ...] = ()
        with suppress(NotFound):  # of a service of an earlier release, which lists no countersignatures, as well
            if (run := countersigned_of(prefix)) is not None:
                folder, key_of = "", keys.countersignature_key
                found = self._list(CountersignatureList, f"{run_path(run)}/countersignatures").countersignatures
            else:
                (run, folder), key_of = snapshots_of(prefix), keys.snapshot_key
                found = self._list(SnapshotList, snapshots_path(run, folder)).snapshots
        names = (f"{run}/{folder}{key_of(seq)}" for seq in sorted(set(found)) if seq < 10**12)
        return (name for name in names if after is None or name > after)

    def delete(self, key: str) -> None:
        """Give up a lease: a service deletes nothing else.

        Raises:
            InvalidArgument: it is not a lease.
        """
        resource = self._resource(key)
        if resource.kind == "lease":
            self._api.ask("DELETE", resource.path)
            return
        raise InvalidArgument(f"{key!r}: a service deletes nothing but leases for its clients; delete it in the bucket")

    def gateway(self) -> Gateway:
        """Return this service."""
        return self

    # -- Gateway ---------------------------------------------------------------------------------------------------

    def wait_for_record(self, run: str, seq: int, timeout_s: float, folder: str = "") -> bool:
        """Wait until a record is there, and keep it for the next `get`: see Gateway.wait_for_record."""
        self._check_open()
        return self._records_of(folder).wait(run, seq, timeout_s)

    def expect(self, run: str, keys: Sequence[str]) -> None:
        """Ask for the URLs of all these objects in one request: see Gateway.expect."""
        self._check_open()
        self._urls.expect(run, keys)

    def share(self, run: str, lender: str, version: int) -> str:
        """Make a version of another run a base of the root, to which the run refers: see Gateway.share."""
        self._check_open()
        body = BaseRequest(run=lender, version=version).model_dump_json().encode()
        while True:  # each request copies for some seconds
            path = f"{run_path(run)}/bases"
            shared = self._api.parsed(BaseBody, self._api.ask("POST", path, body=body, wait_s=_COPY_S))
            if not shared.missing:
                return shared.base

    def report(self, run: str, worker: str, report: WorkerReport) -> None:
        """Tell the service which version a worker serves, and how its last pull went.

        Raises:
            AccessDenied: the token does not allow it.
            InvalidArgument: the worker's name is not valid.
            StoreUnavailable: the service did not take it.
        """
        self._check_open()
        path = f"{run_path(run)}/workers/{checked_worker(worker)}"
        self._api.ask("PUT", path, body=report.model_dump_json().encode())

    def deregister(self, run: str, worker: str) -> None:
        """Tell the service that a worker is none any more.

        Raises:
            As `report`.
        """
        self._check_open()
        self._api.ask("DELETE", f"{run_path(run)}/workers/{checked_worker(worker)}")

    def workers(self, run: str) -> tuple[WorkerBody, ...]:
        """Return the workers of a run that reported to the service of late, by name.

        Raises:
            NotFound: there is no such run.
            AccessDenied: the token does not allow it.
            StoreUnavailable: the service did not answer.
        """
        self._check_open()
        path = f"{run_path(run)}/workers"
        return self._api.json(WorkerList, "GET", path, most_values=_LISTED_VALUES).workers

    # -- objects ---------------------------------------------------------------------------------------------------

    def _object(self, resource: Resource, byte_range: ByteRange | None, max_bytes: int) -> bytes:
        signed = self._urls.of(resource.run, resource.key)
        if signed.own:
            return self._own_object(resource, signed, byte_range, max_bytes)
        return self._from_bucket(
            resource, signed, lambda url: self._bucket.get(url, resource.key, byte_range, max_bytes)
        )

    def _object_size(self, resource: Resource) -> int:
        signed = self._urls.of(resource.run, resource.key)
        if signed.own:
            return self._own_size(resource, signed)
        return self._from_bucket(resource, signed, lambda url: self._bucket.size(url, resource.key))

    def _from_bucket(self, resource: Resource, signed: PresignedUrl, read: Callable[[str], T]) -> T:
        """Read by a URL; by a new one where it is refused, as it may have expired, or leads nowhere.

        Of several buckets the service knows one that answers. Where one fails, the next try asks for that.
        """
        try:
            return read(signed.url)
        except SignatureRefused:
            self._urls.forget(resource.run, resource.key, signed)
            return read(self._urls.of(resource.run, resource.key).url)
        except (NotFound, InvalidArgument):  # InvalidArgument: the bucket is no more
            self._urls.forget(resource.run, resource.key, signed)
            again = self._urls.of(resource.run, resource.key)
            if again.own or again.url.partition("?")[0] == signed.url.partition("?")[0]:
                raise
            return read(again.url)
        except StoreUnavailable as error:
            if not error.throttled:
                self._urls.forget(resource.run, resource.key, signed)
            raise

    def _own_object(
        self, resource: Resource, signed: PresignedUrl, byte_range: ByteRange | None, max_bytes: int
    ) -> bytes:
        also = () if byte_range is None else (416,)
        path, headers = own_path(signed.url) or resource.path, range_header(byte_range)
        with self._api.stream("GET", path, headers=headers, also=also) as response:
            transfer = BodyTransfer(self._api.timeouts, f"{self.url}: {resource.key}")
            return read_range(response, resource.key, byte_range, transfer, max_bytes)

    def _own_size(self, resource: Resource, signed: PresignedUrl) -> int:
        path, headers = own_path(signed.url) or resource.path, range_header((0, 1))
        with self._api.stream("GET", path, headers=headers, also=(416,)) as response:
            return read_size(response, resource.key, BodyTransfer(self._api.timeouts, f"{self.url}: {resource.key}"))

    # -- documents -------------------------------------------------------------------------------------------------

    def _document(self, resource: Resource, max_bytes: int) -> bytes:
        if resource.kind == "record":
            return self._records_of(resource.folder).get(resource.run, resource.seq, max_bytes)
        return self._api.ask("GET", resource.path, most=max_bytes).body

    def _list(self, kind: type[L], path: str) -> L:
        return self._api.json(kind, "GET", path, most=_LISTED_BYTES, most_values=_LISTED_BYTES)

    def _records_of(self, folder: str) -> Records:
        return self._outer_records if folder else self._records

    def _resource(self, key: str) -> Resource:
        self._check_open()
        return resource_of(key)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise InvalidArgument(f"the connection to {self.url} was closed; open it again")


def _close(api: ServiceApi, bucket: PresignedRequests) -> None:
    api.close()
    bucket.close()


def _cut(data: bytes, key: str, byte_range: ByteRange, size: int) -> bytes:
    start, stop = byte_range
    if stop > size:
        raise CorruptObject(f"{key}: bytes {start} to {stop} were asked for, and it is {size} bytes long")
    return data[start:stop]
