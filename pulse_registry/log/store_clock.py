"""The store's clock: the one by which ages count, so that it does not matter what the clocks of machines say."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from pulse_registry.format import keys

if TYPE_CHECKING:
    from pulse_registry.store import Store

_PROBE: Final = b"pulse\n"


class StoreClock:
    """Tells the store's time, by what it says of objects; to the second, as S3 does."""

    def __init__(self, store: Store) -> None:
        """Prepare to ask a store, scoped to a run's prefix; no I/O yet."""
        self._store = store

    def now(self) -> datetime:
        """Return the time, of an object that is written for it: one PUT and one HEAD.

        Several may ask at once: who finds the other's object gets a time that is later by as much as it was.

        Raises:
            InvalidArgument: this store does not tell the time: it is a service, and not the bucket itself.
            AccessDenied, StoreUnavailable: the store did not do it.
        """
        self._store.put(keys.CLOCK, _PROBE)
        return self.written(keys.CLOCK)

    def written(self, key: str) -> datetime:
        """Return when an object was last written: one HEAD.

        Raises:
            NotFound: there is no such object.
            InvalidArgument, AccessDenied, StoreUnavailable: as `now`.
        """
        return self._store.modified(key)
