"""Guard protocol of a log's reader: judges records and snapshots before they are believed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pulse_schemas import Record
from pulse_schemas.outer import OuterRecord

AnyRecord = Record | OuterRecord
"""Of a run's log, or of the log of its outer rounds."""


class Guard(Protocol):
    """Judges what one reader of a run finds. Called under that reader's lock; ``check_signature`` from anywhere."""

    def begin(self, first: Callable[[], str | None] | None = None) -> int | None:
        """Begin a look at the log; return the number of the newest record that is known to have been seen before.

        Args:
            first: returns the hash of record 0, None where there is none; given when the log is opened.
        """
        ...

    def check_key(self, kind: str, public: str | None) -> None:
        """Raise Untrusted unless a key, or None for none, may sign this kind of record."""
        ...

    def check_signature(self, record: AnyRecord, sealed: bytes, countersignature: bytes | None = None) -> None:
        """Raise Untrusted unless a record is of the run and signed, or countersigned, by a key that may sign it.

        ``countersignature`` is a sealed document, which need not be of this record.
        """
        ...

    def check(self, record: AnyRecord, sealed: bytes, countersignature: bytes | None = None) -> None:
        """Raise Untrusted unless a record may be believed: as ``check_signature``, and that no other had its number."""
        ...

    def check_snapshot(self, sealed: bytes) -> None:
        """Raise Untrusted unless a snapshot may be believed, whose seal fits."""
        ...

    def check_end(self, newest: int, last: str | None) -> None:
        """Raise Untrusted if another record than the newest one, whose hash is ``last``, was seen elsewhere."""
        ...

    def gone(self, seq: int, newest: int, last: str | None) -> None:
        """Raise Untrusted: record ``seq`` was seen before, and the log ends at ``newest``, whose hash is ``last``.

        Raises:
            Behind: instead, where it was seen at another root of the run, and this one has the same records so far.
        """
        ...

    def folded(self, record: AnyRecord, sealed: bytes) -> None:
        """Note that a record was checked and follows what was folded before it."""
        ...

    def settle(self) -> None:
        """Remember the newest record that was folded.

        Raises:
            Untrusted: another process has seen another record at its number.
            CorruptObject, StoreUnavailable: what was seen can't be read or kept.
        """
        ...
