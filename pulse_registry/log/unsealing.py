"""Unsealing of a log's documents: a schema error becomes CorruptObject or UnsupportedFormat."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pulse_registry.errors import CorruptObject, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.log.fold import sealed_hash
from pulse_registry.process.cycle_collector import cycles_kept
from pulse_schemas import (
    Countersignature,
    Fault,
    Head,
    Home,
    Record,
    SchemaError,
    SegmentedSnapshot,
    Snapshot,
    unseal_record,
    unseal_snapshot,
)


def unsealed_record(key: str, sealed: bytes) -> tuple[Record, bytes]:
    """Return the record that lies under a key, and its sealed bytes.

    Raises:
        CorruptObject: it is damaged.
        UnsupportedFormat: another release wrote it; as below.
    """
    with _typed(key):
        return unseal_record(sealed), sealed


def unsealed_countersignature(key: str, sealed: bytes) -> bytes:
    """Return the sealed bytes of a countersignature, which is one."""
    with _typed(key):
        Countersignature.unseal(sealed)
    return sealed


def unsealed_head(sealed: bytes) -> Head:
    """Return the hint of the newest record."""
    with _typed(keys.HEAD):
        return Head.unseal(sealed)


def unsealed_home(sealed: bytes) -> Home:
    """Return the document that says which move led to a root."""
    with _typed(keys.HOME):
        return Home.unseal(sealed)


@cycles_kept()
def unsealed_snapshot(sealed: bytes) -> tuple[Snapshot | SegmentedSnapshot, bytes]:
    """Return a snapshot of any format, and its sealed bytes."""
    with _typed("the snapshot"):
        return unseal_snapshot(sealed), sealed


def record_with_hash(seq: int, digest: str, sealed: bytes) -> bytes:
    """Return the sealed bytes of the record that a snapshot folded last.

    Raises:
        CorruptObject: they are those of another one.
    """
    if sealed_hash(sealed) != digest:
        raise CorruptObject(f"record {seq} is another one than it folds")
    return sealed


@contextmanager
def _typed(name: str) -> Iterator[None]:
    try:
        yield
    except SchemaError as error:
        kind = UnsupportedFormat if error.fault is Fault.UNSUPPORTED else CorruptObject
        raise kind(f"{name}: {error}") from error
