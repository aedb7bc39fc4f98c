"""The outer log in a store: read record by record, and appended to by create-if-absent.

It lies below ``outer/`` of its run, under the names of a run's log; workers never read it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pulse_registry.errors import AlreadyExists, CorruptObject, NotFound, StoreUnavailable, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.log.clock import timestamp, utc_now
from pulse_registry.log.documents import SMALL
from pulse_registry.log.fold import sealed_hash
from pulse_registry.outer.state import OuterState
from pulse_registry.store import PrefixStore, Store
from pulse_registry.store.verified_read import checked
from pulse_schemas import Fault, SchemaError, Signer
from pulse_schemas.outer import OuterRecord, unseal_outer_record

FOLDER: Final = "outer"
Make = Callable[[OuterState, dict[str, Any]], OuterRecord | None]
"""Makes the record that is to follow a state, from it and the fields that all records have; None: none is wanted."""


class OuterLog:
    """The outer log of one run, as one member sees it. Not thread-safe.

    Attributes:
        state: the fold of all that was read.
    """

    def __init__(self, store: Store, run: str, signer: Signer | None = None) -> None:
        """Prepare; no I/O yet.

        Args:
            store: scoped to the run.
            run: its name.
            signer: signs what is appended.
        """
        self.state = OuterState(run)
        self._store, self._signer = PrefixStore(store, FOLDER), signer
        self._unknown: dict[str, tuple[int, bytes]] = {}  # appends without an answer, by write id

    def refresh(self) -> OuterState:
        """Read what is new: a GET a record, and one that finds none.

        Raises:
            CorruptObject, UnsupportedFormat: a record is damaged, breaks a rule, or is of another release.
            StoreUnavailable: what was read before is kept; call again.
        """
        while (found := self._read(self.state.seq + 1)) is not None:
            self._fold(*found)
        return self.state

    def append(self, make: Make, write_id: str | None = None) -> OuterRecord | None:
        """Append a record behind whatever others append meanwhile.

        Args:
            make: is called with each newer state, until its record is in the log; it is not called again once it was.
            write_id: of the record. After StoreUnavailable call again with the same one: what landed is found, and is
                never appended twice.

        Returns:
            The record; whether it counts, its fold has said (``OuterState``). None: ``make`` wanted none.

        Raises:
            StoreUnavailable: the record may be in the log, or land yet.
            CorruptObject, UnsupportedFormat: as ``refresh``.
        """
        write_id = write_id or uuid.uuid4().hex
        while True:
            if (landed := self._landed(write_id)) is not None:
                return landed
            state = self.refresh()
            common = {
                "run": state.run,
                "seq": state.seq + 1,
                "write_id": write_id,
                "previous": state.last,
                "created_at": timestamp(utc_now()),
            }
            record = make(state, common)
            if record is None:
                return None
            sealed = record.seal(self._signer)
            self._unknown[write_id] = record.seq, sealed
            try:
                self._store.put(keys.record_key(record.seq), sealed, if_absent=True)
            except AlreadyExists:
                continue  # others' record, or this one, whose answer was lost on its way
            del self._unknown[write_id]
            self._fold(record, sealed)
            return record

    def _landed(self, write_id: str) -> OuterRecord | None:
        """Return the record of an append without an answer, if the log has it; else it is tried again.

        At its number there is either nothing, and the same bytes are put there again, or a record that came to stay.
        """
        if write_id not in self._unknown:
            return None
        seq, sealed = self._unknown[write_id]
        found = self._read(seq)
        if found is None:
            try:
                self._store.put(keys.record_key(seq), sealed, if_absent=True)
            except AlreadyExists:
                found = self._read(seq)
                if found is None:
                    raise StoreUnavailable(
                        f"{self._store.url}: record {seq} is said to exist and not to; call again"
                    ) from None
            else:
                found = unseal_outer_record(sealed), sealed
        del self._unknown[write_id]
        if self.state.seq < seq:
            self.refresh()
        return found[0] if found[0].write_id == write_id else None

    def _read(self, seq: int) -> tuple[OuterRecord, bytes] | None:
        key = keys.record_key(seq)
        try:
            return checked(partial(self._store.get, key, max_bytes=SMALL), partial(_unsealed, key))
        except NotFound:
            return None

    def _fold(self, record: OuterRecord, sealed: bytes) -> None:
        self.state.advance(record, sealed_hash(sealed))


def _unsealed(key: str, sealed: bytes) -> tuple[OuterRecord, bytes]:
    try:
        return unseal_outer_record(sealed), sealed
    except SchemaError as error:
        kind = UnsupportedFormat if error.fault is Fault.UNSUPPORTED else CorruptObject
        raise kind(f"{FOLDER}/{key}: {error}") from error
