"""The store: the few verbs of object storage that the registry is built on, and their contract.

Implementations subclass `Store`; abilities such as retries and counting are wrappers around one. One class of tests
(`pulse_registry.testing.StoreTests`) runs over every implementation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import datetime
from typing import Final, Literal

from pulse_registry.errors import InvalidArgument, NotFound
from pulse_registry.store.body import Body, Buffer
from pulse_registry.store.checks import ByteRange, check_buffer, short_answer
from pulse_registry.store.gateway import Gateway
from pulse_registry.store.presigner import Presigner
from pulse_registry.store.roots import Roots

Verb = Literal["get", "put", "exists", "size", "list", "delete"]

MOST_WHOLE_BYTES: Final = 64 << 20
"""Of an object that is asked for whole, where the caller says no other bound. What may be longer is read by ranges."""


class Store(ABC):
    """A flat space of immutable byte objects under string keys.

    An implementation has `url`, and offers five verbs: `get`, `put`, `size`, `list` and `delete`. The other methods are
    made of these; it overrides those that it can do better.

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

    Attributes:
        url: where this store is, for messages.
    """

    url: str

    def __repr__(self) -> str:
        """Show the class and the URL."""
        return f"{type(self).__name__}({self.url!r})"

    @abstractmethod
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

    @abstractmethod
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

    @abstractmethod
    def size(self, key: str) -> int:
        """Return the object's size in bytes.

        Raises:
            NotFound: there is no such object.
            InvalidArgument: the key is not valid.
            StoreUnavailable: the store could not do it.
        """

    @abstractmethod
    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over all keys that begin with a string, in code-point order.

        Args:
            prefix: any beginning of a key, not only a whole folder; "" for all.
            after: only keys strictly greater than this string, which need not be a key.

        Raises:
            InvalidArgument: no key can begin with the prefix (see check_prefix).
            StoreUnavailable: the store could not do it; raised by the call or by any step of the iteration.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object. Idempotent: a key that is not there is no error.

        Raises:
            InvalidArgument: the key is not valid.
            StoreUnavailable: the store could not do it, or the answer was lost.
        """

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the beginnings of keys that end at the first '/' behind a prefix, in code-point order.

        Of ``a/x/1``, ``a/x/2`` and ``a/y``, those behind ``a/`` are ``a/x/``. A folder that holds an object during the
        whole of it comes once; one whose objects were all deleted may still come, as file systems keep it.

        As written here, one listing a folder, and one an object beside them: each begins behind all keys of what came
        before. A store that can list the names of one level overrides it.

        Args:
            prefix: any beginning of a key, as `list` takes it; "" for the folders of the top.
            after: only folders strictly greater than this string.

        Raises:
            As `list`.
        """
        behind = after
        while (key := next(self.list(prefix, behind), None)) is not None:
            name, slash, _ = key[len(prefix) :].partition("/")
            folder = f"{prefix}{name}/"
            if slash and (after is None or folder > after):
                yield folder
            # '0' follows '/': no key of this folder comes behind it, and all keys of later names do.
            behind = f"{prefix}{name}0" if slash else key

    def exists(self, key: str) -> bool:
        """Tell whether the object is there.

        Raises:
            InvalidArgument: the key is not valid.
            StoreUnavailable: the store could not tell.
        """
        try:
            self.size(key)
        except NotFound:
            return False
        return True

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        """Read a half-open range of an object into a buffer of exactly its size.

        A store that can read into memory which the caller has overrides it, so that large reads allocate nothing. What
        the buffer holds after an error is not defined.

        Raises:
            InvalidArgument: the key or the range is not valid, or the buffer is not writable, contiguous and as long.
            PulseError: as `get`.
        """
        view = check_buffer(key, byte_range, buffer)
        data = self.get(key, byte_range)
        if len(data) != view.nbytes:
            raise short_answer(key, self.url, byte_range, len(data))
        view[:] = data

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, by the store's own clock, whoever wrote it.

        Times of one store can be compared with one another, and with nothing else. They may be rounded down to a
        second; of an object that went up in parts, the time may be that of the upload's beginning.

        Raises:
            NotFound: there is no such object.
            InvalidArgument: the key is not valid; or this store does not tell.
            StoreUnavailable: the store could not do it.
        """
        raise InvalidArgument(f"{self.url} does not tell when {key!r} was written: go to the bucket itself")

    def presigner(self) -> Presigner | None:
        """Return what signs requests for this store's objects, looking through wrappers; None if it can't presign."""
        return None

    def gateway(self) -> Gateway | None:
        """Return the service that this store goes through, looking through wrappers; None if it goes to the bucket."""
        return None

    def roots(self) -> Roots[Store] | None:
        """Return what chooses among this store's roots, looking through wrappers; None if it has one."""
        return None
