"""Presigned requests: with one of them, anybody may read or create one object for a while."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


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


class Presigner(Protocol):
    """Signs requests for the objects of a store: see `Store.presigner`.

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
