"""Cleanup of an examination: removes what it wrote, and what a killed one left behind."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from typing import Final

from pulse_registry.process.parallel import parallel_map
from pulse_registry.store import Body, FileStore, RetryPolicy, RetryStore, Store, WrapperStore

PREFIX: Final = "pulse-doctor-"
"""Every examination writes below a folder that begins so, and nowhere else."""

_FOLDER: Final = re.compile(rf"({re.escape(PREFIX)}[0-9a-f]{{16}})/")
_THREADS: Final = 16
PATIENCE_S: Final = 5.0
"""A store that is away for longer is one of the findings."""


class LedgerStore(WrapperStore):
    """Remembers what was written, so that it can be removed from a store whose listings have holes too."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._lock = threading.Lock()
        self._keys: set[str] = set()

    @property
    def keys(self) -> frozenset[str]:
        """The keys that were written, whatever came of it."""
        with self._lock:
            return frozenset(self._keys)

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object, and remember its key."""
        with self._lock:
            self._keys.add(key)
        self._store.put(key, data, if_absent=if_absent)


def remove_folder(store: Store, folder: str, keys: Iterable[str] = ()) -> int:
    """Remove all that is listed below a folder, and keys that may not be; return how many there were.

    Raises:
        StoreUnavailable, AccessDenied: something could not be removed.
    """
    patient = RetryStore(store, RetryPolicy(total_s=PATIENCE_S))
    found = {*keys, *patient.list(f"{folder}/")}
    with parallel_map(_THREADS, "pulse-doctor") as map_:
        map_(patient.delete, sorted(found))
    if isinstance(store, FileStore):
        store.remove_folders(folder)  # the objects are gone, but a file system keeps their folders
    return len(found)


def remove_leftovers(store: Store) -> tuple[str, ...]:
    """Remove what examinations that were killed left behind, and return their folders.

    One that is under way elsewhere is disturbed, and may report what is not so.

    Raises:
        StoreUnavailable, AccessDenied: the store can't be listed, or something could not be removed.
    """
    matches = map(_FOLDER.match, RetryStore(store, RetryPolicy(total_s=PATIENCE_S)).list(PREFIX))
    folders = sorted({match.group(1) for match in matches if match is not None})
    for folder in folders:
        remove_folder(store, folder)
    return tuple(folders)
