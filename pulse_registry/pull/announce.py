"""Announcement of reads: a service hears at once of all objects that will be read, and not one by one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pulse_registry.errors import NotFound, StoreUnavailable
from pulse_registry.store import Store


def announce(store: Store, run: str, keys: Sequence[str]) -> None:
    """Let the service that a store goes through, if any, arrange for the reading of a run's objects."""
    gateway = store.gateway()
    if gateway is not None and keys:
        with suppress(NotFound, StoreUnavailable):  # then each read asks by itself, and says what is wrong with it
            gateway.expect(run, keys)
