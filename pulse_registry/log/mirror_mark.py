"""The mark of a run that is a copy: whoever is to append looks for it first, so that a copy never goes its own way."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from pulse_registry.errors import AlreadyExists, Conflict, CorruptObject, Mirrored, NotFound, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.log.documents import read_document
from pulse_registry.store.verified_read import checked
from pulse_schemas import Fault, MirrorMark, SchemaError

if TYPE_CHECKING:
    from pulse_registry.store import Store

_MOST_URL: Final = 1024


def check_not_mirror(store: Store, run: str) -> None:
    """Raise Mirrored where a run is a copy: one GET; behind a service none, since the service looks itself.

    Args:
        store: scoped to the run.
        run: its name.

    Raises:
        Mirrored: only its source takes records.
        CorruptObject, UnsupportedFormat: there is a mark, and it can't be read: it is taken for one.
        AccessDenied, StoreUnavailable: the store can't tell.
    """
    if store.gateway() is not None:
        return
    mark = read_mark(store)
    if mark is not None:
        raise Mirrored(
            f"run {run!r}: {store.url} holds a copy of {mark.source}: write there; or make the copy the run's home "
            "first (pulse promote)"
        )


def check_mirror(store: Store, run: str) -> None:
    """Raise Conflict where a run is no copy: a mirror writes to copies alone. ``store`` is scoped to the run.

    Raises:
        CorruptObject, UnsupportedFormat, AccessDenied, StoreUnavailable: as ``read_mark``.
    """
    if read_mark(store) is None:
        raise Conflict(f"run {run!r}: {store.url} has no copy of it: writers work there, and a mirror writes to copies")


def read_mark(store: Store) -> MirrorMark | None:
    """Return the mark of a run, None where it is no copy. ``store`` is scoped to the run.

    Raises:
        CorruptObject, UnsupportedFormat, AccessDenied, StoreUnavailable: it can't be read.
    """
    try:
        return checked(partial(read_document, store, keys.MIRROR), _unsealed)
    except NotFound:
        return None


def write_mark(store: Store, run: str, source: str) -> None:
    """Mark a run as a copy of that below ``source``, unless it is one already. ``store`` is scoped to the run.

    Raises:
        AccessDenied, StoreUnavailable: the store did not do it.
    """
    with suppress(AlreadyExists):  # another mirror's, or this one's, whose answer was lost
        store.put(keys.MIRROR, MirrorMark(run=run, source=source[:_MOST_URL]).seal(), if_absent=True)


def drop_mark(store: Store) -> None:
    """Take the mark away: the run is no copy any more. ``store`` is scoped to the run.

    Raises:
        AccessDenied, StoreUnavailable: the store did not do it.
    """
    store.delete(keys.MIRROR)


def _unsealed(sealed: bytes) -> MirrorMark:
    try:
        return MirrorMark.unseal(sealed)
    except SchemaError as error:
        kind = UnsupportedFormat if error.fault is Fault.UNSUPPORTED else CorruptObject
        raise kind(f"{keys.MIRROR}: {error}") from error
