"""Keys with names, and those who hold them."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pulse_registry.events import Events
from pulse_registry.format import keys
from pulse_registry.log import LogReader, LogWriter
from pulse_registry.signing import PinGuard, SigningKey, Trust
from pulse_registry.store import Store
from pulse_schemas import Record, Sealed, Signature, Signer, open_sealed
from tests.support.records import RUN, DictStore, clock, draft, ids


def key(number: int) -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


TRAINER, COMPACTOR, STRANGER = key(1), key(2), key(3)
LIMITED = f"{COMPACTOR.public}=attach"


def reader(
    store: Store, state: Path | None = None, *pins: str, run: str = RUN, events: Events | None = None, **trust: float
) -> LogReader:
    """Return a reader that pins the trainer's key, or ``pins``, and keeps what it saw in ``state``."""
    guard = PinGuard(Trust(pins or (TRAINER.public,), **trust), store.url, run, state, events=events)
    return LogReader(store, run, guard)


def writer(
    store: Store,
    signer: Signer | None,
    *,
    believes: LogReader | None = None,
    number: int = 1,
    every: int = 64,
    run: str = RUN,
) -> LogWriter:
    """Return a writer; it believes the store, unless a reader is given."""
    return LogWriter(
        store,
        run,
        believes or LogReader(store, run),
        clock(),
        ids(number),
        f"w{number}",
        snapshot_every=every,
        signer=signer,
    )


class Heedless(LogReader):
    """A reader whose writer does not ask who signs the run: an attacker's, or one of an early release."""

    def run_key(self) -> None:
        return None


def forger(store: Store, signer: Signer | None, *, number: int = 2, every: int = 64) -> LogWriter:
    """Return a writer that writes whatever it likes."""
    return writer(store, signer, believes=Heedless(store, RUN), number=number, every=every)


def history(
    versions: int = 3, *, signer: Signer | None = TRAINER, every: int = 64, run: str = RUN, first: int = 1
) -> DictStore:
    """Return a store with a run that writer ``first`` wrote, and one signed: an epoch record and so many commits."""
    store = DictStore()
    term = writer(store, signer, every=every, run=run, number=first)
    term.begin()
    for version in range(versions):
        term.commit(draft(version))
    return store


def record_at(store: DictStore, seq: int) -> bytes:
    return store.objects[keys.record_key(seq)]


def put_record(store: DictStore, seq: int, sealed: bytes) -> None:
    store.objects[keys.record_key(seq)] = sealed


def unsigned(sealed: bytes) -> bytes:
    """Take the signature off a document, and seal it anew."""
    return Sealed(open_sealed(sealed).body).to_bytes()


def claimed(record: Record, by: SigningKey, of: SigningKey) -> bytes:
    """Sign a record with one key and say that it was another."""
    body = record.canonical()
    return Sealed(body, Signature(bytes.fromhex(of.public.removeprefix("ed25519:")), by.sign(body).value)).to_bytes()
