"""The key that a writer signs with, checked before it writes: against pinned keys, or the key that signs the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulse_registry.errors import Distrust, Untrusted
from pulse_registry.log.reader import LogReader
from pulse_schemas import Record, Signer, open_sealed

if TYPE_CHECKING:
    from pulse_registry.store import Store


class WriterKey:
    """Whether a run's readers would believe what is signed with one key, or with none."""

    def __init__(self, store: Store, reader: LogReader, signer: Signer | None) -> None:
        """Prepare to check; nothing is signed and no I/O made yet. The store is named in messages."""
        self._store = store
        self._reader = reader
        self._signer = signer
        self._public: str | None = None

    def check(self, kind: str) -> None:
        """Raise Untrusted unless readers would believe a record of this kind. See `LogWriter.check_key`."""
        if self._public is None and self._signer is not None:
            self._public = self._signer.sign(b"").public
        if self._reader.guard is not None:
            self._reader.guard.check_key(kind, self._public)
        else:
            self._check_run_key(self._public)

    def check_record(self, record: Record, sealed: bytes) -> None:
        """Raise Untrusted unless readers would believe a sealed record.

        Raises:
            CorruptObject, UnsupportedFormat, StoreUnavailable: the log can't be read.
        """
        if self._reader.guard is not None:
            self._reader.guard.check_signature(record, sealed)
        elif self._reader.run_key() is not None:
            signature = open_sealed(sealed).signature
            self._check_run_key(None if signature is None else signature.public)

    def _check_run_key(self, own: str | None) -> None:
        """Raise Untrusted unless a key, or none, is the one that signs the run."""
        run_key = self._reader.run_key()
        if run_key is None or own == run_key:
            return
        name = f"run {self._reader.run!r} in {self._store.url} is signed by {run_key}"
        if own is None:
            raise Untrusted(
                f"{name}, and this writer has no key: readers that pin keys would refuse the run from its record on. "
                "Give the key (signing_key=, --signing-key, PULSE_SIGNING_KEY); nothing was written",
                Distrust.UNSIGNED,
            )
        raise Untrusted(
            f"{name}, and this writer's key is {own}, which the run's readers may not pin. Sign with the first one, or "
            "say that they pin both (trust=, --trust, PULSE_TRUST: all keys, as the readers have them); nothing was "
            "written",
            Distrust.WRONG_KEY,
        )
