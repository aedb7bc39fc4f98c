"""The store: the few verbs of object storage that the registry is built on, and their contract.

Implementations live beside this file; abilities such as retries and counting are wrappers around a Store.
One conformance suite (tests/unit/store/conformance.py) runs over every implementation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Protocol, runtime_checkable

from pulse_registry.errors import CorruptObject, InvalidArgument

Buffer = bytes | bytearray | memoryview
ByteRange = tuple[int, int]
Verb = Literal["get", "put", "exists", "size", "list", "delete"]

MOST_WHOLE_BYTES: Final = 64 << 20
"""Of an object that is asked for whole, where the caller says no other bound. What may be longer is read by ranges."""


class Stream(ABC):
    """An object's data, made as it is written, so that it is never in memory as a whole.

    It may be iterated more than once (a put that is retried) and gives the same bytes each time, ``nbytes`` in all. A
    buffer that it has given stays as it is until the next one is asked for.
    """

    nbytes: int

    @abstractmethod
    def __iter__(self) -> Iterator[Buffer]:
        """Begin anew."""


Body = Buffer | Sequence[Buffer] | Stream


class Store(Protocol):
    """A flat space of immutable byte objects under string keys.

    What every implementation guarantees:

    - **Reads see completed writes.** Once `put` or `delete` has returned, every `get`, `size`, `exists` and
      `list` that starts later, in any thread or process, sees its effect.
    - **`put` is atomic.** A reader sees the whole old object, or none, or the whole new one: never a part.
      This holds when the writer is killed at any moment.
    - **`put(if_absent=True)` has exactly one winner** among any number of concurrent writers of a key; the
      rest raise AlreadyExists, and the winner's bytes are untouched.
    - **`list` is complete and ordered.** Every key that was there during the whole of the listing is in it
      once, in code-point order. A key that is put or deleted meanwhile may or may not be.
    - **A failure says whether to try again.** StoreUnavailable: the store could not do it. A `put` or
      `delete` that raised it may have taken effect all the same (the answer was lost). Other errors have had
      no effect.
    - **What is no object is handed out by no verb.** Where something else than a file lies at a key in a folder, as a
      link, `list` leaves it out, `put` replaces it (or raises AlreadyExists), `delete` removes it, and the other verbs
      raise CorruptObject; all of them do where it lies in the place of a folder.
    - **Thread-safe.** One instance may be used by many threads at a time.

    Keys are what `check_key` accepts; every verb raises InvalidArgument for others. A store may refuse, with
    InvalidArgument, to put a key that is or was the folder of another (`a` and `a/b`): don't build such keys.
    """

    @property
    def url(self) -> str:
        """Where this store is, for messages."""
        ...

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a half-open range of it.

        Args:
            key: the object's key.
            byte_range: (start, stop) in bytes, 0 <= start <= stop; None for the whole object.
            max_bytes: the most bytes that an object which is asked for whole may have. A range is its own bound.

        Raises:
            NotFound: there is no such object.
            CorruptObject: the range reaches past the end of the object: it is shorter than the caller was
                told. Nothing is allocated for the missing bytes. Or the whole object has more than `max_bytes`: memory
                for more is never taken, whatever its size is said to be, or becomes while it is read.
            InvalidArgument: the key or the range is not valid.
            AccessDenied: the credentials do not allow it; every verb may raise it.
            StoreUnavailable: the store could not do it.
        """
        ...

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object, all or nothing; it is durable when this returns, as far as the store goes.

        Args:
            key: the object's key.
            data: contiguous bytes, a sequence of buffers to write one after the other, or a Stream of them. Not
                kept: the caller may change its buffers once this returns.
            if_absent: create only. Without it an object that is there is replaced.

        Raises:
            AlreadyExists: if_absent, and the key is taken. After a lost answer that may be this caller's own
                object: read it back to tell.
            InvalidArgument: the key or the data is not valid.
            StoreUnavailable: the store could not do it, or the answer was lost.
        """
        ...

    def exists(self, key: str) -> bool:
        """Tell whether the object is there.

        Raises:
            InvalidArgument: the key is not valid.
            StoreUnavailable: the store could not tell.
        """
        ...

    def size(self, key: str) -> int:
        """Return the object's size in bytes.

        Raises:
            NotFound: there is no such object.
            InvalidArgument: the key is not valid.
            StoreUnavailable: the store could not do it.
        """
        ...

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over all keys that begin with a string, in code-point order.

        Args:
            prefix: any beginning of a key, not only a whole folder; "" for all.
            after: only keys strictly greater than this string, which need not be a key.

        Raises:
            InvalidArgument: no key can begin with the prefix (see check_prefix).
            StoreUnavailable: the store could not do it; raised by the call or by any step of the iteration.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove an object. Idempotent: a key that is not there is no error.

        Raises:
            InvalidArgument: the key is not valid.
            StoreUnavailable: the store could not do it, or the answer was lost.
        """
        ...


@dataclass(frozen=True, slots=True)
class SignedPut:
    """A PUT that anybody may send for a while: to ``url``, with these very ``headers``, the bytes it was made for."""

    url: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class UploadedPart:
    """A part of an upload that the store took: its number from 1, the ETag it answered, SHA-256 (hex) of its bytes."""

    number: int
    etag: str
    sha256: str


@runtime_checkable
class Presigner(Protocol):
    """A store that can sign requests for its objects, with which anybody may read or create one for a while.

    Every method raises InvalidArgument for a key, size or time that is not valid, and AccessDenied where there are no
    credentials to sign with.
    """

    def presign(self, key: str, expires_s: int) -> str:
        """Return a URL that reads the object, or a range of it, for `expires_s` seconds, whether it exists or not.

        Makes no request to the store.
        """
        ...

    def presign_put(self, key: str, size: int, sha256: str, expires_s: int) -> SignedPut:
        """Return a PUT that creates the object, of this size and SHA-256 (hex), if the key is free.

        The condition, the length and the checksum are among the signed headers: the store refuses a request that
        changes or drops one. Makes no request to the store.
        """
        ...

    def begin_parts(self, key: str) -> str:
        """Begin an upload in parts and return its id; nothing is at the key before `finish_parts`.

        Raises:
            StoreUnavailable: the store could not do it.
        """
        ...

    def presign_part(self, key: str, upload_id: str, number: int, size: int, sha256: str, expires_s: int) -> SignedPut:
        """Return a PUT that uploads part `number` (1 to 10,000); see `presign_put`. Makes no request to the store."""
        ...

    def finish_parts(self, key: str, upload_id: str, parts: Sequence[UploadedPart]) -> None:
        """Make the object of its parts, if the key is free.

        Raises:
            AlreadyExists: the key is taken. After a lost answer that may be by this upload: check the size.
            InvalidArgument: a part is missing, or is not what was uploaded; or there is no such upload.
            StoreUnavailable: the store could not do it, or the answer was lost.
        """
        ...

    def abort_parts(self, key: str, upload_id: str) -> None:
        """Give up an upload and its parts. Idempotent.

        Raises:
            StoreUnavailable: the store could not do it.
        """
        ...


@runtime_checkable
class HasPresigner(Protocol):
    """A store around another one, which presigns if that one does."""

    def presigner(self) -> Presigner | None:
        """Return what signs URLs for this store's keys, or None."""
        ...


@runtime_checkable
class ReadsInto(Protocol):
    """A store that reads into memory which the caller has, so that large reads allocate nothing.

    Call `read_into`, which does with any store. Wrappers that watch or change reads don't have this ability.
    """

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        """Read a half-open range of an object into a buffer of exactly its size.

        What the buffer holds after an error is not defined.

        Raises:
            InvalidArgument: the key or the range is not valid, or the buffer is not writable, contiguous and as long.
            Other errors as `Store.get`.
        """
        ...


@runtime_checkable
class Dated(Protocol):
    """A store that says when an object was written. Call `modified`, which does with any store."""

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, by the store's own clock, whoever wrote it.

        Times of one store can be compared with one another, and with nothing else. They may be rounded down to a
        second; of an object that went up in parts, the time may be that of the upload's beginning.

        Raises:
            NotFound: there is no such object.
            InvalidArgument: the key is not valid.
            StoreUnavailable: the store could not do it.
        """
        ...


@runtime_checkable
class Gateway(Protocol):
    """A store behind a service, which checks what is appended to a log, and keeps its snapshots and its hint itself."""

    def wait_for_record(self, run: str, seq: int, timeout_s: float) -> bool:
        """Wait until record `seq` of a run is there; return whether it is, False once `timeout_s` have passed.

        Raises:
            NotFound: there is no such run.
            AccessDenied: the token does not allow to read it.
            StoreUnavailable: the service could not tell.
        """
        ...

    def expect(self, run: str, keys: Sequence[str]) -> None:
        """Say which objects of a run, by their keys below it, are about to be read, so that it is arranged at once.

        Raises:
            AccessDenied, StoreUnavailable: as `Store.get`.
        """
        ...


@runtime_checkable
class HasGateway(Protocol):
    """A store around another one, which is a gateway if that one is."""

    def gateway(self) -> Gateway | None:
        """Return the service that this store goes through, or None."""
        ...


def presigner_of(store: Store) -> Presigner | None:
    """Return what signs URLs for the store's keys, looking through wrappers; None if it can't presign."""
    if isinstance(store, Presigner):
        return store
    if isinstance(store, HasPresigner):
        return store.presigner()
    return None


def gateway_of(store: Store) -> Gateway | None:
    """Return the service that the store goes through, looking through wrappers; None if it goes to the bucket."""
    if isinstance(store, Gateway):
        return store
    if isinstance(store, HasGateway):
        return store.gateway()
    return None


def modified(store: Store, key: str) -> datetime:
    """Return when an object was last written, by the store's own clock: see Dated.modified.

    Raises:
        InvalidArgument: this store does not tell.
    """
    if isinstance(store, Dated):
        return store.modified(key)
    raise InvalidArgument(f"{store.url} does not tell when {key!r} was written: go to the bucket itself")


def read_into(store: Store, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
    """Read a half-open range of an object into a buffer of exactly its size, with any store: see ReadsInto.get_into."""
    if isinstance(store, ReadsInto):
        store.get_into(key, byte_range, buffer)
    else:
        view = check_buffer(key, byte_range, buffer)
        data = store.get(key, byte_range)
        if len(data) != view.nbytes:
            raise CorruptObject(f"{key!r} in {store.url}: {len(data)} bytes came of bytes {byte_range}")
        view[:] = data


def check_buffer(key: str, byte_range: ByteRange, buffer: Buffer) -> memoryview:
    """Return a flat view of a buffer that a range is to be read into.

    Raises:
        InvalidArgument: the range is not valid, or the buffer is not writable, contiguous and as long.
    """
    check_range(key, byte_range)
    view = _flat(buffer)
    if view.readonly or view.nbytes != byte_range[1] - byte_range[0]:
        kind = "is read-only" if view.readonly else f"has {view.nbytes} bytes"
        raise InvalidArgument(f"the buffer for bytes {byte_range[0]} to {byte_range[1]} of {key!r} {kind}")
    return view


def body_views(data: Body) -> Iterable[memoryview]:
    """Return flat byte views of a body's buffers, in order, empty ones left out; nothing is copied.

    Those of a Stream are made as they are asked for, once; the others are checked at once.

    Raises:
        InvalidArgument: a part is not a buffer, or is not contiguous; or, at its end, a Stream's size is not its
            ``nbytes``.
    """
    if isinstance(data, Stream):
        return _stream_views(data)
    parts: Sequence[Buffer] = (data,) if isinstance(data, bytes | bytearray | memoryview) else data
    return tuple(view for view in map(_flat, parts) if view.nbytes)


def body_size(data: Body) -> int:
    """Return a body's size in bytes, without making a Stream's data."""
    return data.nbytes if isinstance(data, Stream) else sum(view.nbytes for view in body_views(data))


def _stream_views(data: Stream) -> Iterator[memoryview]:
    total = 0
    for part in data:
        view = _flat(part)
        total += view.nbytes
        yield view
    if total != data.nbytes:
        raise InvalidArgument(f"a stream gave {total} bytes and had announced {data.nbytes}")


def _flat(part: Buffer) -> memoryview:
    try:
        view = memoryview(part)
        return view.cast("B") if view.nbytes else view
    except TypeError as error:
        raise InvalidArgument(
            f"an object's data must be contiguous bytes, or a sequence of them; got {type(part).__name__}: {error}"
        ) from None


def check_whole(key: str, url: str, size: int, max_bytes: int) -> None:
    """Check that an object may be read whole, before memory is taken for it.

    Raises:
        CorruptObject: it has more bytes than that.
    """
    if size > max_bytes:
        raise too_long(key, url, f"{size} bytes", max_bytes)


def too_long(key: str, url: str, size: str, max_bytes: int) -> CorruptObject:
    """Return the error of an object that is longer than anything of ours under its key."""
    return CorruptObject(
        f"object {key!r} in {url} has {size}, and {max_bytes} are the most that are read of it: it is not what was "
        "written there; restore it or use another route"
    )


def check_range(key: str, byte_range: ByteRange) -> None:
    """Check that a byte range is half-open and counts from the start of the object.

    Raises:
        InvalidArgument: it is not 0 <= start <= stop.
    """
    start, stop = byte_range
    if not 0 <= start <= stop:
        raise InvalidArgument(f"byte range ({start}, {stop}) of {key!r} is not 0 <= start <= stop")
