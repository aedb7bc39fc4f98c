"""A view of a store below a prefix: to its user, the prefix is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from pulse_registry.store.base import MOST_WHOLE_BYTES, Store
from pulse_registry.store.body import Body, Buffer
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.keys import check_key, check_prefix
from pulse_registry.store.presigner import Presigner, SignedPut, UploadedPart
from pulse_registry.store.wrappers.wrapper import Listing, WrapperStore


class PrefixStore(WrapperStore):
    """A Store of the keys below a folder of another store; keys outside of it can't be reached.

    The bound on a key's length holds for the whole key, prefix included. Messages of errors name the whole
    key.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        """View a store below a prefix.

        Args:
            store: the store that holds the objects.
            prefix: a folder: valid as a key is, without a trailing '/'.

        Raises:
            InvalidArgument: the prefix is not valid.
        """
        check_key(prefix)
        super().__init__(store)
        self._prefix = prefix
        self.url = f"{store.url.rstrip('/')}/{prefix}"

    def __repr__(self) -> str:
        """Show the wrapped store and the prefix."""
        return f"{type(self).__name__}({self._store!r}, {self._prefix!r})"

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range: see Store.get."""
        return self._store.get(self._whole(key), byte_range, max_bytes=max_bytes)

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        """Read a range into a buffer: see Store.get_into."""
        self._store.get_into(self._whole(key), byte_range, buffer)

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object, all or nothing: see Store.put."""
        self._store.put(self._whole(key), data, if_absent=if_absent)

    def exists(self, key: str) -> bool:
        """Tell whether the object is there: see Store.exists."""
        return self._store.exists(self._whole(key))

    def size(self, key: str) -> int:
        """Return the object's size in bytes: see Store.size."""
        return self._store.size(self._whole(key))

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the keys that begin with a string, without this view's prefix: see Store.list."""
        return self._below(self._store.list, prefix, after)

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the folders behind a prefix, without this view's: see Store.folders."""
        return self._below(self._store.folders, prefix, after)

    def delete(self, key: str) -> None:
        """Remove an object if it is there: see Store.delete."""
        self._store.delete(self._whole(key))

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, by the store's clock: see Store.modified."""
        return self._store.modified(self._whole(key))

    def presigner(self) -> Presigner | None:
        """Return what signs URLs for this view's keys, or None if the wrapped store can't."""
        signer = self._store.presigner()
        return None if signer is None else _PrefixPresigner(signer, self._whole)

    def _below(self, listing: Listing, prefix: str, after: str | None) -> Iterator[str]:
        check_prefix(prefix)
        below = f"{self._prefix}/"
        found = listing(below + prefix, None if after is None else below + after)
        return (key[len(below) :] for key in found)

    def _whole(self, key: str) -> str:
        """Return the wrapped store's key for one of this view's."""
        check_key(key)
        return f"{self._prefix}/{key}"


class _PrefixPresigner:
    """Signs requests for the keys below a prefix."""

    def __init__(self, signer: Presigner, whole: Callable[[str], str]) -> None:
        self._signer = signer
        self._whole = whole

    def presign(self, key: str, expires_s: int) -> str:
        """Return a URL that reads the object for a while: see Presigner.presign."""
        return self._signer.presign(self._whole(key), expires_s)

    def presign_put(self, key: str, size: int, sha256: str, expires_s: int) -> SignedPut:
        """Return a PUT that creates the object: see Presigner.presign_put."""
        return self._signer.presign_put(self._whole(key), size, sha256, expires_s)

    def begin_parts(self, key: str) -> str:
        """Begin an upload in parts: see Presigner.begin_parts."""
        return self._signer.begin_parts(self._whole(key))

    def presign_part(self, key: str, upload_id: str, number: int, size: int, sha256: str, expires_s: int) -> SignedPut:
        """Return a PUT that uploads a part: see Presigner.presign_part."""
        return self._signer.presign_part(self._whole(key), upload_id, number, size, sha256, expires_s)

    def finish_parts(self, key: str, upload_id: str, parts: Sequence[UploadedPart]) -> None:
        """Make the object of its parts: see Presigner.finish_parts."""
        self._signer.finish_parts(self._whole(key), upload_id, parts)

    def abort_parts(self, key: str, upload_id: str) -> None:
        """Give up an upload: see Presigner.abort_parts."""
        self._signer.abort_parts(self._whole(key), upload_id)
