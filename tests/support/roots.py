"""Roots that lag, die, come back and damage what they hold; what was asked of each is counted."""

from __future__ import annotations

from pulse_registry.testing import CountingStore, FaultStore
from pulse_registry.testing.fault import Fault
from tests.support.records import DictStore


class Region(CountingStore):
    """A root in some region.

    Attributes:
        held: its objects.
        dead: whether it does nothing that is asked of it.
        damaged: keys of what it gives with a bit flipped.
    """

    def __init__(self, name: str) -> None:
        self.held = DictStore()
        self.held.url = f"dict://{name}"
        self.dead, self.damaged = False, set[str]()
        faults = (
            Fault("fail_before", matches=lambda verb, key: self.dead),
            Fault("flip_bit", verb="get", matches=lambda verb, key: key in self.damaged),
        )
        super().__init__(FaultStore(self.held, faults))

    def asked(self) -> list[tuple[str, str]]:
        """Return what was asked of it since this was last called."""
        ledger = [(str(verb), key) for verb, key in self.ledger]
        self.reset()
        return ledger
