"""Small files of a run: file sets and what is in them, read, and checked against the hashes that name them."""

from __future__ import annotations

from functools import partial
from typing import Final

from pulse_registry.errors import CorruptObject, UnsupportedFormat
from pulse_registry.format.keys import file_key
from pulse_registry.store import Store
from pulse_registry.store.verified_read import verified
from pulse_schemas import Fault, FileEntry, FileSet, SchemaError

FILE_SET_BYTES: Final = 64 << 10
"""Of the document that lists a set's files: 128 of them, with the longest names, take 36 KB."""


def fetch_file_set(store: Store, files_id: str) -> FileSet:
    """Fetch the document that lists a version's files.

    Args:
        store: scoped to the run.
        files_id: as the version's record names it.

    Raises:
        NotFound: it is not there.
        CorruptObject, UnsupportedFormat: it can't be read.
    """
    key = file_key(files_id)
    data = fetch_named(store, files_id, FILE_SET_BYTES)
    try:
        return FileSet.parse(data)
    except SchemaError as error:
        kind = UnsupportedFormat if error.fault is Fault.UNSUPPORTED else CorruptObject
        raise kind(f"{key}: {error}") from error


def fetch_file(store: Store, name: str, entry: FileEntry) -> bytes:
    """Fetch the bytes of one file of a set, which hash to what the set says.

    Raises:
        NotFound: it is not there.
        CorruptObject: it has other bytes.
    """
    data = fetch_named(store, entry.blake3, entry.size)
    if len(data) != entry.size:
        raise CorruptObject(f"{file_key(entry.blake3)}: file {name} has {len(data):,} bytes, not {entry.size:,}")
    return data


def fetch_named(store: Store, digest: str, most: int) -> bytes:
    """Fetch the bytes, at most so many, of the file or the file set that is named by their hash; see the others."""
    key = file_key(digest)
    read = partial(store.get, key, max_bytes=most)
    return verified(read, bytes.fromhex(digest), f"{key}: the BLAKE3 of its bytes")
