"""Copies what lies beside a log and saves readers time: countersignatures, snapshots with their segments, the hint.

None of it is needed for truth: what is damaged at the source, or goes meanwhile, is left out and looked at again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Final

from pulse_registry.errors import CorruptObject, NotFound, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.log.documents import SEGMENT, read_document
from pulse_registry.log.gap import MOST_LISTED
from pulse_registry.log.segments import segment_key
from pulse_registry.log.superseded import listed
from pulse_registry.log.unsealing import unsealed_countersignature, unsealed_head, unsealed_snapshot
from pulse_registry.store import PrefixStore, Store
from pulse_registry.store.verified_read import checked, verified
from pulse_schemas import SchemaError, SegmentedSnapshot, open_sealed

_logger = logging.getLogger(__name__)
_NEWEST: Final = 8
"""Snapshots that readers look at; a source that nobody tidies up has many more."""


class Documents:
    """Copies the documents beside the logs of one run; for one thread at a time."""

    def __init__(self, source: Store, destination: Store, *, verify: bool = False) -> None:
        """Prepare; no I/O yet. Both are scoped to the run; ``verify`` reads back, once, what is there already."""
        self._source, self._destination = source, destination
        self._unread = {"", keys.OUTER} if verify else set[str]()  # folders

    def copy(self, folder: str, seq: int) -> None:
        """Copy what belongs to the records up to one, and delete what the source has replaced.

        Args:
            folder: of the log, with its slash; "" for the run's own.
            seq: the newest record that the copy has; -1: none.

        Raises:
            AccessDenied, StoreUnavailable: a store did not do it.
        """
        if seq < 0:
            return
        source, destination = (
            PrefixStore(one, folder.rstrip("/")) if folder else one for one in (self._source, self._destination)
        )
        beside = _Beside(source, destination, folder, seq)
        if folder in self._unread:
            beside.delete_damaged()
            self._unread.remove(folder)
        beside.copy()


class _Beside:
    """What lies beside one log, at the source and at the copy, as it is now."""

    def __init__(self, source: Store, destination: Store, folder: str, seq: int) -> None:
        self._source, self._destination, self._folder, self._seq = source, destination, folder, seq

    def copy(self) -> None:
        if not self._folder:  # nobody countersigns records of outer rounds
            for key in sorted(self._countersignatures(self._source) - self._countersignatures(self._destination)):
                with _skipped(key):
                    read = partial(read_document, self._source, key)
                    self._destination.put(key, checked(read, partial(unsealed_countersignature, key)))
        numbers = (keys.snapshot_seq(key) for key in islice(self._source.list(keys.SNAPSHOTS), MOST_LISTED))
        wanted = sorted(number for number in numbers if number is not None and number <= self._seq)[-_NEWEST:]
        there = listed(self._destination)
        snapshots = {*there.snapshots}
        for number in wanted:
            if number not in snapshots:
                with _skipped(keys.snapshot_key(number)):
                    self._copy_snapshot(number, there.segments)
                    snapshots.add(number)
        self._copy_head(snapshots)
        if wanted and snapshots.issuperset(wanted):
            self._delete({n for n in snapshots if n < wanted[-1]} - {*wanted}, wanted, there.segments)

    def delete_damaged(self) -> None:
        """Read back what the copy has, and delete what is damaged, or needs what is not there: it is copied again."""
        for key in [] if self._folder else sorted(self._countersignatures(self._destination)):
            with _skipped(key):
                read = partial(read_document, self._source, key)
                sealed = checked(read, partial(unsealed_countersignature, key))
                if _at(self._destination, key) != sealed:
                    self._destination.put(key, sealed)
        there = listed(self._destination)
        segments = {key for key in sorted(there.segments) if self._has(key)}
        for key in sorted(there.segments - segments):
            self._destination.delete(key)
        for key in map(keys.snapshot_key, there.snapshots):
            try:
                if self._named(_whole(key, read_document(self._destination, key))).keys() <= segments:
                    continue
            except (NotFound, CorruptObject):
                pass
            except UnsupportedFormat:
                continue  # a newer release's
            self._destination.delete(key)

    def _has(self, segment: str) -> bool:
        """Tell whether the copy has a segment whole, as its name says."""
        found = keys.segment_of(segment)
        read = partial(self._destination.get, segment, max_bytes=SEGMENT)
        try:
            verified(read, bytes.fromhex(found[1] if found else ""), f"{segment}: the BLAKE3 of its bytes")
        except (NotFound, CorruptObject):
            return False
        return True

    def _countersignatures(self, store: Store) -> set[str]:
        found = ((key, keys.countersigned_seq(key)) for key in islice(store.list(keys.COUNTERSIGNED), MOST_LISTED))
        return {key for key, number in found if number is not None and number <= self._seq}

    def _copy_snapshot(self, number: int, there: frozenset[str]) -> None:
        key = keys.snapshot_key(number)
        read = partial(read_document, self._source, key)
        sealed = checked(read, partial(_whole, key))
        for segment, digest in self._named(sealed).items():
            if segment not in there:
                fetch = partial(self._source.get, segment, max_bytes=SEGMENT)
                data = verified(fetch, bytes.fromhex(digest), f"{segment}: the BLAKE3 of its bytes")
                self._destination.put(segment, data)
        self._destination.put(key, sealed)

    def _named(self, sealed: bytes) -> dict[str, str]:
        """Return the segments that a snapshot names, and their hashes."""
        if self._folder:
            return {}
        snapshot, _ = unsealed_snapshot(sealed)
        if not isinstance(snapshot, SegmentedSnapshot):
            return {}
        return {segment_key(ref): ref.blake3 for ref in snapshot.segments}

    def _copy_head(self, snapshots: set[int]) -> None:
        """Copy the hint, once what it tells of is here."""
        with _skipped(keys.HEAD):
            read = partial(read_document, self._source, keys.HEAD)
            sealed = checked(read, partial(_whole, keys.HEAD))
            head = unsealed_head(sealed)
            if head.seq > self._seq or (head.snapshot is not None and head.snapshot not in snapshots):
                return
            if _at(self._destination, keys.HEAD) != sealed:
                self._destination.put(keys.HEAD, sealed)

    def _delete(self, old: set[int], kept: list[int], segments: frozenset[str]) -> None:
        """Delete snapshots that the source has no more, and segments that none of those which stay names."""
        for number in sorted(old):
            self._destination.delete(keys.snapshot_key(number))
        if not segments:
            return
        named = set[str]()
        for number in kept:
            key = keys.snapshot_key(number)
            try:
                named |= self._named(_whole(key, read_document(self._destination, key))).keys()
            except NotFound:
                return  # another mirror knows more
            except CorruptObject:
                self._destination.delete(key)  # it is copied again
                return
            except UnsupportedFormat:
                return  # a newer release's, of which nobody knows what it names
        for key in sorted(segments - named):
            found = keys.segment_of(key)
            if found is not None and found[0] <= kept[-1]:  # others may be about to name those of later ones
                self._destination.delete(key)


def _whole(key: str, sealed: bytes) -> bytes:
    try:
        open_sealed(sealed)
    except SchemaError as error:
        raise CorruptObject(f"{key}: {error}") from error
    return sealed


def _at(store: Store, key: str) -> bytes | None:
    try:
        return read_document(store, key)
    except (NotFound, CorruptObject):
        return None


@contextmanager
def _skipped(key: str) -> Iterator[None]:
    try:
        yield
    except (NotFound, CorruptObject, UnsupportedFormat) as error:
        _logger.info("%s is not copied now: %s", key, error)
