"""Creation of a record: a put if absent at its number, and a look at what became of it where the answer was lost."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pulse_registry.errors import AlreadyExists, InvalidArgument, StoreUnavailable
from pulse_registry.format import keys
from pulse_registry.log.documents import RECORD
from pulse_registry.log.reader import LogReader
from pulse_registry.log.writer_key import WriterKey
from pulse_registry.store.wrappers.retry import retrying_at_most
from pulse_schemas import Record, SchemaError, Signer
from pulse_schemas.records import check_parts

if TYPE_CHECKING:
    from pulse_registry.store import Store


class Appender:
    """Creates records of one run, for one writer. Not thread-safe: the writer has a lock."""

    def __init__(self, store: Store, reader: LogReader, signer: Signer | None, key: WriterKey) -> None:
        """Prepare to create; no I/O yet.

        Args:
            store: the store, scoped to the run's prefix.
            reader: reads the same run; it is kept up to date with what is created.
            signer: signs the records.
            key: is checked before each record.
        """
        self._store = store
        self._reader = reader
        self._signer = signer
        self._key = key
        self._looked = False
        # Write ids of puts whose success was not seen, with the seq that they were for.
        self._unknown: dict[str, int] = {}

    def is_unknown(self, write_id: str) -> bool:
        """Tell whether a put of that id had no answer, so that it may have landed or land yet."""
        return write_id in self._unknown

    def landed(self, write_id: str) -> Record | None:
        """Return the record of a put whose answer never came, if the log holds it now. See `LogWriter.landed`."""
        seq = self._unknown.get(write_id)
        found = None if seq is None else self._reader.read(seq)
        if found is None:
            return None
        record, sealed = found
        self._reader.accept(sealed)
        if record.write_id == write_id:
            return record
        del self._unknown[write_id]
        return None

    def forget(self, write_id: str) -> None:
        """Take note that the fate of a put is known."""
        self._unknown.pop(write_id, None)

    def create(self, record: Record) -> Record | None:
        """Create a record that follows the newest state known, at its number, and return it as the log holds it.

        Before the first one it looks past the end of the log: a record that is missing looks like it.

        Returns:
            None if another record is there: then it is folded, and nothing was written.

        Raises:
            InvalidArgument: readers would refuse it for its size; nothing was written.
            Untrusted: readers would not believe it; nothing was written.
            CorruptObject, UnsupportedFormat: the log can't be read, or a record of it is missing; nothing was written.
            StoreUnavailable: the store failed, and the record may land yet: call ``landed`` with its write id.
        """
        sealed = record.seal(self._signer)
        self._check_readable(record, sealed)
        self._key.check_record(record, sealed)
        if not self._looked:
            newest, self._looked = self._reader.check_end(), True
            if newest.seq >= record.seq:
                return None
        self._unknown[record.write_id] = record.seq
        try:
            self._store.put(keys.record_key(record.seq), sealed, if_absent=True)
        except AlreadyExists as error:
            found = self._reader.read(record.seq)
            if found is None:
                raise StoreUnavailable(
                    f"{self._store.url}: record {record.seq} is said to exist and not to; call again"
                ) from error
        except StoreUnavailable:
            found = self._read_back(record.seq)
            if found is None:
                raise
        else:
            found = record, sealed
        stored, sealed = found
        self._reader.accept(sealed)
        if stored.write_id == record.write_id:
            return stored
        self._reader.refresh()
        return None

    def _check_readable(self, record: Record, sealed: bytes) -> None:
        """Raise InvalidArgument where readers would refuse a record for its length, or for how many parts it has."""
        wrong = f"{len(sealed):,} bytes, and readers take {RECORD:,} at most" if len(sealed) > RECORD else None
        try:
            check_parts(sealed)
        except SchemaError as error:
            wrong = str(error)
        if wrong is not None:
            raise InvalidArgument(
                f"run {record.run!r}: record {record.seq} can't be written: {wrong}: name fewer objects or versions in "
                "one record; nothing was written"
            )

    def _read_back(self, seq: int) -> tuple[Record, bytes] | None:
        """Look whether there is a record, after a put that failed: the time that a store may be away is spent on it."""
        with retrying_at_most(0.0), suppress(StoreUnavailable):
            return self._reader.read(seq)
        return None
