"""Records of a run's log: fetched by number, one by one or ahead, and judged by the guard with countersignatures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Final

from pulse_registry.errors import CorruptObject, Distrust, NotFound, UnsupportedFormat, Untrusted
from pulse_registry.format import keys
from pulse_registry.log.documents import read_document
from pulse_registry.log.fold import sealed_hash
from pulse_registry.log.guard import Guard
from pulse_registry.log.read_ahead import follow
from pulse_registry.log.unsealing import unsealed_countersignature, unsealed_record
from pulse_registry.store.verified_read import checked
from pulse_schemas import Record

if TYPE_CHECKING:
    from pulse_registry.store import Store

_logger = logging.getLogger(__name__)
_OF_SIGNATURES: Final = (Distrust.UNSIGNED, Distrust.WRONG_KEY, Distrust.BAD_SIGNATURE)

Check = Callable[[Record, bytes, bytes | None], None]
"""Raises Untrusted unless it believes a record's sealed bytes, or a countersignature of them: a guard's method."""


class Records:
    """The stored records of one run. Nothing is kept: thread-safe."""

    def __init__(self, store: Store, run: str, threads: Callable[[int, str], Executor] | None) -> None:
        """Prepare to read; no I/O yet.

        Args:
            store: the store, scoped to the run's prefix.
            run: the run's name, for messages.
            threads: makes an executor, of so many threads and their name's beginning; None reads nothing ahead.
        """
        self._store = store
        self._run = run
        self._threads = threads

    def read(self, seq: int) -> tuple[Record, bytes] | None:
        """Fetch record ``seq`` and its sealed bytes; None if it is not there.

        Raises:
            CorruptObject: it is damaged.
            UnsupportedFormat: a newer release wrote it.
            StoreUnavailable: the store failed.
        """
        key = keys.record_key(seq)
        try:
            return checked(partial(read_document, self._store, key), partial(unsealed_record, key))
        except NotFound:
            return None

    def follow(self, first: int, *, ahead: bool) -> Iterator[tuple[Record, bytes]]:
        """Yield the records from one on, in order, until one is not there; an error is raised in its place.

        Args:
            first: the number of the first one.
            ahead: read many at a time after the first ones, by up to 15 more that are not there.
        """
        return follow(self.read, first, self._threads if ahead else None)

    def believe(self, check: Check, record: Record, sealed: bytes) -> None:
        """Check a record, and where its own signature will not do, its countersignature: a GET that good ones save.

        Raises:
            Untrusted: ``check`` believes neither.
            StoreUnavailable: the countersignature can't be read.
        """
        try:
            check(record, sealed, None)
        except Untrusted as error:
            found = self._countersignature(record.seq) if error.reason in _OF_SIGNATURES else None
            if found is None:
                raise
            check(record, sealed, found)

    def first(self) -> str | None:
        """Return the hash of record 0; None where it is not there, or is not to be read.

        Raises:
            StoreUnavailable: the store failed.
        """
        try:
            found = self.read(0)
        except (CorruptObject, UnsupportedFormat):
            return None
        return None if found is None else sealed_hash(found[1])

    def check_seen(self, guard: Guard, seen: int, newest: int, last: str | None) -> None:
        """Raise Untrusted unless the log still has record ``seen``, which was seen before, as ``guard`` knows it.

        Args:
            guard: judges it.
            seen: its number.
            newest: number of the newest record that was found.
            last: that one's hash.

        Raises:
            Behind: the log is a copy that has not come as far.
            CorruptObject, UnsupportedFormat, StoreUnavailable: it can't be read.
        """
        found = self.read(seen)
        if found is None:
            guard.gone(seen, newest, last)
        else:
            self.believe(guard.check, *found)

    def _countersignature(self, seq: int) -> bytes | None:
        key = keys.countersignature_key(seq)
        try:
            return checked(partial(read_document, self._store, key), partial(unsealed_countersignature, key))
        except NotFound:
            return None
        except (CorruptObject, UnsupportedFormat) as error:
            _logger.warning("run %s: ignoring the countersignature %s: %s", self._run, key, error)
            return None
