"""Mutants of mirror and promotion: each with one safeguard taken away, to see that the simulator of regions sees it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from pulse_registry.errors import AlreadyExists
from pulse_registry.format import keys
from pulse_registry.log import LogReader, LogWriter
from pulse_registry.mirror import Promotion, log_copy, promotion
from pulse_registry.mirror.copier import Copier, Copying
from pulse_registry.mirror.leases import CarriedLeases
from pulse_registry.mirror.log_copy import LogCopy
from pulse_registry.store import Store
from pulse_schemas import HomeEntry, VersionEntry
from tests.scenarios.simulator.mutants import Mutant


class _Waiting(Copying):
    """A copy that begins when it should be over."""

    __slots__ = ("begin",)

    def outcome(self, meanwhile: Any = None) -> None:
        return None

    def end(self) -> None:
        self.begin()


def _records_first(patched: pytest.MonkeyPatch) -> None:
    real = Copier.begin

    def begin(self: Copier, unit: Any) -> Any:
        late = _Waiting(unit, ())
        late.begin = lambda: real(self, unit).outcome()
        return late

    patched.setattr(Copier, "begin", begin)


def _no_fork_check(patched: pytest.MonkeyPatch) -> None:
    """Take whatever record has the number for the source's."""

    def put(store: Store, seq: int, sealed: bytes) -> bool:
        with suppress(AlreadyExists):
            store.put(keys.record_key(seq), sealed, if_absent=True)
        return True

    patched.setattr(log_copy, "put_record", put)
    patched.setattr(LogCopy, "compare", lambda self: None)


def _no_carried_leases(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(CarriedLeases, "carry", lambda self, held: None)


def _no_move(patched: pytest.MonkeyPatch) -> None:
    """Let the copy take records, and the source go on."""

    def home(reader: LogReader) -> HomeEntry:
        return HomeEntry(move="0" * 32, to="sim://eu", seq=1)

    patched.setattr(LogWriter, "move", lambda self, to, write_id, *, lost=False: None)
    patched.setattr(promotion, "_home", home)


def _no_fence(patched: pytest.MonkeyPatch) -> None:
    """Name what a lost home has beyond the copy, and let it take records."""
    real = Promotion.fence

    def fence(self: Promotion, home: HomeEntry) -> tuple[VersionEntry, ...]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(LogWriter, "move", lambda self, to, write_id, *, lost=False: None)
            return real(self, home)

    patched.setattr(Promotion, "fence", fence)


REGIONS_MUTANTS = (
    Mutant("records before objects", "a copy's objects are there before the record that names them", _records_first),
    Mutant("no fork check", "a mirror stops where the copy has another record", _no_fork_check, seed=11),
    Mutant("lease not carried", "what the copy's readers hold is kept at the source", _no_carried_leases, seed=2),
    Mutant("promote without move", "the old home takes no record once the copy is the home", _no_move),
    Mutant("lost home not fenced", "a lost home that is back takes no record", _no_fence, seed=4),
)
