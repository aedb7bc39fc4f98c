"""Countersigning: who holds a pinned key signs for records that a run's readers refuse.

look -> show -> countersign. The log stays as it is; what is believed of it grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pulse_registry.errors import Conflict, InvalidArgument, NotFound, Untrusted
from pulse_registry.format import keys
from pulse_registry.log import LogReader, RunState, sealed_hash
from pulse_registry.log.fold import advance
from pulse_schemas import Countersignature, Record, Signer

if TYPE_CHECKING:
    from pulse_registry.store import Store

_AHEAD: Final = 16


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record of the log that a reader with these pins refuses.

    Attributes:
        record: what it says.
        hash: BLAKE3 of its stored bytes.
        why: in words.
    """

    record: Record
    hash: str
    why: str

    @property
    def name(self) -> str:
        """What stands for it, and for all before it, since each record names the hash of the one before."""
        return f"{self.record.seq}:{self.hash}"


class Countersigning:
    """Finds and countersigns the records of one run that readers refuse."""

    def __init__(
        self, store: Store, reader: LogReader, signer: Signer | None, *, each: Callable[..., Iterable[Any]] = map
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            store: the store, scoped to the run's prefix: the bucket itself, not a service.
            reader: of the run, which pins the keys that the run's readers pin.
            signer: signs countersignatures.
            each: how to make many requests: `map`, or a parallel one.

        Raises:
            InvalidArgument: the reader pins no keys.
        """
        if reader.guard is None:
            raise InvalidArgument(
                "what readers refuse depends on what they pin: give their keys (trust=, --trust, PULSE_TRUST)"
            )
        self._store, self._reader, self._signer, self._each = store, reader, signer, each
        self._guard = reader.guard

    def refused(self) -> list[RefusedRecord]:
        """Read the whole log and return the records that readers refuse, oldest first; those countersigned are not.

        Raises:
            NotFound: there is no such run.
            CorruptObject, UnsupportedFormat, StoreUnavailable: the log can't be read.
        """
        return [refused for refused, _ in self._look()]

    def countersign(self, until: str) -> list[RefusedRecord]:
        """Countersign all records that readers refuse up to one, and return them. Idempotent.

        Args:
            until: the ``name`` of the newest of them, so that what is countersigned is what was looked at.

        Raises:
            Untrusted: there is no key, or readers would not believe it about one of these kinds; nothing was written.
            Conflict: other records are refused than when ``until`` was named: look again; nothing was written.
            NotFound, CorruptObject, UnsupportedFormat, StoreUnavailable: as ``refused``; what was written stays.
        """
        found = self._look()
        names = [refused.name for refused, _ in found]
        if until not in names:
            raise Conflict(
                f"run {self._reader.run!r}: no record that readers refuse is {until[:100]!r}: it was countersigned, or "
                "it is another one by now; look again"
            )
        chosen = found[: names.index(until) + 1]
        written = [self._document(refused.record, sealed) for refused, sealed in chosen]
        for key, document in written:
            self._store.put(key, document)
        return [refused for refused, _ in chosen]

    def _document(self, record: Record, sealed: bytes) -> tuple[str, bytes]:
        if self._signer is None:
            self._guard.check_key(record.kind, None)
        said = Countersignature(run=record.run, seq=record.seq, record=sealed_hash(sealed))
        document = said.seal(self._signer)
        self._guard.check_signature(record, sealed, document)
        return keys.countersignature_key(record.seq), document

    def _look(self) -> list[tuple[RefusedRecord, bytes]]:
        state, found = RunState(self._reader.run), []
        for record, sealed, refusal in self._records():
            advance(state, record, sealed_hash(sealed))
            if refusal is not None:
                found.append((RefusedRecord(record, sealed_hash(sealed), str(refusal)), sealed))
        if state.seq < 0:
            raise NotFound(f"there is no run {self._reader.run!r} in {self._store.url}")
        return found

    def _records(self) -> Iterator[tuple[Record, bytes, Untrusted | None]]:
        seq = 0
        while True:
            for found in self._each(self._judged, range(seq, seq + _AHEAD)):
                if found is None:
                    return
                yield found
            seq += _AHEAD

    def _judged(self, seq: int) -> tuple[Record, bytes, Untrusted | None] | None:
        found = self._reader.read(seq)
        if found is None:
            return None
        try:
            self._reader.check_signature(*found)
        except Untrusted as error:
            return *found, error
        return *found, None
