"""The leases of a run's readers, as the store has them: which are alive, and which can go."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final

from pulse_registry.errors import CorruptObject, NotFound, UnsupportedFormat
from pulse_registry.format import keys
from pulse_registry.log import StoreClock
from pulse_registry.log.documents import read_document
from pulse_registry.process.parallel import Map
from pulse_registry.retention.policy import RetentionPolicy
from pulse_registry.retention.survey import BATCH, MOST
from pulse_registry.store.verified_read import checked
from pulse_schemas import Fault, Lease, SchemaError

if TYPE_CHECKING:
    from pulse_registry.store import Store

_logger = logging.getLogger(__name__)
_ROUNDED: Final = timedelta(seconds=1)
"""What the store's times may be too early by."""


@dataclass(slots=True)
class Leases:
    """Leases of a run, by what was found of them.

    Attributes:
        held: the version that each reader with a living lease holds.
        dead: keys of leases that have run out, and of what is no lease and old; the first of them, if they are many.
    """

    held: dict[str, int] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)


def read_leases(
    store: Store, run: str, clock: StoreClock, now: datetime, policy: RetentionPolicy, *, each: Map = map
) -> Leases:
    """Read the leases of a run: a LIST, and a GET and a HEAD each.

    Raises:
        CorruptObject: more readers hold a lease than there can be.
        UnsupportedFormat: a newer release wrote one of them, so that nobody knows what it asks for.
        AccessDenied, StoreUnavailable: the store did not do it.
    """

    def read(key: str) -> tuple[datetime, Lease | None] | None:
        try:
            # The time first: a lease that is renewed in between counts with its old time, and another look finds it.
            written = clock.written(key)
        except (NotFound, CorruptObject):
            return None  # its reader has closed, or it is no object any more
        try:
            fetch = functools.partial(read_document, store, key)
            return written, checked(fetch, functools.partial(_unsealed, run, key))
        except NotFound:
            return None
        except CorruptObject as error:
            _logger.warning("run %s: %s is no lease, and keeps nothing: %s", run, key, error)
            return written, None

    listed, found = store.list(keys.LEASES), Leases()
    while batch := list(islice(listed, BATCH)):
        for key, one in zip(batch, each(read, batch), strict=True):
            if one is None:
                continue
            written, lease = one
            seconds = policy.orphan_seconds if lease is None else lease.seconds
            if now - written > timedelta(seconds=seconds) + _ROUNDED:
                if len(found.dead) < MOST:
                    found.dead.append(key)
            elif lease is not None:
                found.held[lease.reader] = lease.version
        if len(found.held) > MOST:
            raise CorruptObject(
                f"run {run!r}: more than {MOST:,} leases are alive under {keys.LEASES}, and none of them may be passed "
                "over: nothing was retired; delete those that are no reader's"
            )
    return found


def _unsealed(run: str, key: str, sealed: bytes) -> Lease:
    try:
        lease = Lease.unseal(sealed)
    except SchemaError as error:
        if error.fault is Fault.UNSUPPORTED:
            raise UnsupportedFormat(f"{key}: {error}; nothing is retired or deleted before that") from error
        raise CorruptObject(f"{key}: {error}") from error
    if lease.run != run or keys.lease_key(lease.reader) != key:
        raise CorruptObject(f"{key}: it is that of reader {lease.reader} of run {lease.run}")
    return lease
