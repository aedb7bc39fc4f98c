"""Leases of a mirror at its source: its own, and those of the copy's readers, whom the source's collector can't see."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from pulse_registry.events import Events
from pulse_registry.pull.lease import ReaderLease

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pulse_registry.store import Store

SECONDS: Final = 900.0
"""How long one is alive; it is written anew when a third of that is over."""
_LONGEST_NAME: Final = 160


class CarriedLeases:
    """What one mirror asks the source of a run to keep; for one thread."""

    def __init__(self, source: Store, run: str, events: Events, monotonic: Callable[[], float]) -> None:
        """Prepare; no I/O yet. ``source`` is scoped to the run."""
        self._name = f"mirror.{secrets.token_hex(4)}"
        self._source, self._run, self._events, self._monotonic = source, run, events, monotonic
        self._own = self._make(self._name)
        self._carried: dict[str, ReaderLease] = {}

    def hold(self, version: int) -> None:
        """Keep a version, and the way from it to the newest: the copy's newest, or what is to be copied first."""
        self._own.hold(version)
        self._own.renew()

    def carry(self, held: Mapping[str, int]) -> None:
        """Keep the versions that readers of the copy hold, by their names, and no longer those of others."""
        for reader, version in held.items():
            lease = self._carried.get(reader) or self._carried.setdefault(reader, self._make(self._name_of(reader)))
            lease.hold(version)
            lease.renew()
        for reader in self._carried.keys() - held.keys():
            self._carried.pop(reader).give_up()

    def close(self) -> None:
        """Give up the mirror's own lease; readers go on reading, and theirs run out if no other mirror carries them."""
        self._own.give_up()

    def _make(self, name: str) -> ReaderLease:
        return ReaderLease(self._source, self._run, name, SECONDS, events=self._events, monotonic=self._monotonic)

    def _name_of(self, reader: str) -> str:
        name = f"{self._name}.{reader}"
        return name if len(name) <= _LONGEST_NAME else f"{self._name}.{blake3(reader.encode()).hexdigest()[:32]}"
