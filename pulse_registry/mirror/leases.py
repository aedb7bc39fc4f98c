"""Leases of a mirror at its source: its own, and those of the copy's readers, whom the source's collector can't see."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from pulse_registry.errors import told
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.process.parallel import Map
from pulse_registry.pull.lease import ReaderLease

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulse_registry.store import Store

SECONDS: Final = 900.0
"""How long one is alive; it is written anew when a third of that is over: `RENEWED_S`."""
RENEWED_S: Final = SECONDS / 3
_LONGEST_NAME: Final = 160


class CarriedLeases:
    """What one mirror asks the source of a run to keep; for one thread."""

    def __init__(self, source: Store, run: str, events: Events, monotonic: Callable[[], float], each: Map) -> None:
        """Prepare; no I/O yet. ``source`` is scoped to the run; ``each`` makes requests beside one another."""
        self._each = each
        self._name = f"mirror.{secrets.token_hex(4)}"
        self._source, self._run, self._events, self._monotonic = source, run, events, monotonic
        self._own = self._make(self._name)
        self._carried: dict[str, ReaderLease] = {}
        self._failing = False

    def hold(self, version: int) -> None:
        """Keep a version, and the way from it to the newest: the copy's newest, or what is to be copied first."""
        self._own.hold(version)
        self._own.renew()

    def carry(self, held: Mapping[str, int]) -> None:
        """Keep the versions that readers of the copy hold, by their names, and no longer those of others."""
        for reader, version in held.items():
            lease = self._carried.get(reader) or self._carried.setdefault(reader, self._make(self._name_of(reader)))
            lease.hold(version)
        for _ in self._each(ReaderLease.renew, [self._carried[reader] for reader in held]):
            pass
        self._failing = False
        gone = [self._carried.pop(reader) for reader in sorted(self._carried.keys() - held.keys())]
        for _ in self._each(ReaderLease.give_up, gone):
            pass

    def keep(self, error: Exception) -> None:
        """Keep what was carried, since an error keeps it from being known what readers hold now; tell of it once."""
        for _ in self._each(ReaderLease.renew, [*self._carried.values()]):
            pass
        if not self._failing:
            message = f"what the copy's readers hold can't be known, and may be deleted at the source: {told(error)}"
            self._events.tell(Event(EventKind.LEASE_FAILED, self._run, message), error)
        self._failing = True

    def close(self) -> None:
        """Give up the mirror's own lease; readers go on reading, and theirs run out if no other mirror carries them."""
        self._own.give_up()

    def _make(self, name: str) -> ReaderLease:
        return ReaderLease(self._source, self._run, name, SECONDS, events=self._events, monotonic=self._monotonic)

    def _name_of(self, reader: str) -> str:
        name = f"{self._name}.{reader}"
        return name if len(name) <= _LONGEST_NAME else f"{self._name}.{blake3(reader.encode()).hexdigest()[:32]}"
