"""Mutants: the library with one safeguard taken away, to see that the simulator sees it.

What a seed does changes with every store operation that the library makes: the seeds named here are but tried first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from blake3 import blake3

from pulse_registry.compaction.compactor import Compactor
from pulse_registry.errors import AlreadyExists, NotFound
from pulse_registry.format import coded_shard, keys, patch, patch_head, plain_shard
from pulse_registry.log import LogWriter, RunState, StoreClock
from pulse_registry.log.appender import Appender
from pulse_registry.log.records import Records
from pulse_registry.push import publisher
from pulse_registry.push.baseline import Baseline
from pulse_registry.push.upload import store_patch
from pulse_registry.retention import Collector, collector, plan, survey
from pulse_registry.retention.leases import Leases
from pulse_registry.store import PrefixStore
from pulse_registry.weights.digest import Digest
from pulse_schemas import Head, Record, SchemaError
from tests.scenarios.simulator.weather import Weather
from tests.support.records import DictStore

Patch = Callable[[pytest.MonkeyPatch], None]
CALM, STALLS, LOST, DAMAGE = Weather(), Weather(stall=0.04, stalled="put"), Weather(lose=0.05), Weather(flip=0.1)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A safeguard, and how to take it away; ``weather`` brings what it is for, and ``seed`` finds it soon.

    With ``ranks`` it is one of jobs, of up to so many; with ``members``, of outer rounds of so many.
    """

    name: str
    safeguard: str
    apply: Patch
    weather: Weather = CALM
    seed: int = 0
    ranks: int = 0
    members: int = 0


def _refused_is_own(patched: pytest.MonkeyPatch) -> None:
    """Take the record that is there for one's own: some stores' clients answer so to a put whose answer was lost."""

    def create(self: Any, record: Record) -> Record | None:
        sealed = record.seal()
        self._unknown[record.write_id] = record.seq
        try:
            self._store.put(keys.record_key(record.seq), sealed, if_absent=True)
        except AlreadyExists:
            return record
        self._reader.accept(sealed)
        return record

    patched.setattr(Appender, "create", create)


def _refused_is_lost(patched: pytest.MonkeyPatch) -> None:
    """Take the record that is there for another writer's."""

    def create(self: Any, record: Record) -> Record | None:
        sealed = record.seal()
        try:
            self._store.put(keys.record_key(record.seq), sealed, if_absent=True)
        except AlreadyExists:
            self._reader.refresh()
            return None
        self._reader.accept(sealed)
        return record

    patched.setattr(Appender, "create", create)


def _no_epoch_check(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(LogWriter, "_refuse_if_fenced", lambda self, state: None)


def _no_conditional_put(patched: pytest.MonkeyPatch) -> None:
    real = PrefixStore.put

    def put(self: Any, key: str, data: Any, *, if_absent: bool = False) -> None:
        real(self, key, data, if_absent=if_absent and not key.startswith(keys.LOG))

    patched.setattr(PrefixStore, "put", put)


def _record_first(patched: pytest.MonkeyPatch) -> None:
    """Commit a patch, then store it."""
    waiting: list[tuple[Any, str, bytes]] = []

    def store_later(store: Any, geometry: Any, version: int, write_id: str, coded: Any, *rest: Any) -> Any:
        aside = DictStore()
        ref = store_patch(aside, geometry, version, write_id, coded, *rest)
        waiting.extend((store, key, data) for key, data in aside.objects.items())
        return ref

    real = LogWriter.commit

    def commit(self: Any, draft: Any) -> Any:
        record = real(self, draft)
        while waiting:
            store, key, data = waiting.pop()
            store.put(key, data)
        return record

    patched.setattr(publisher, "store_patch", store_later)
    patched.setattr(LogWriter, "commit", commit)


def _no_checks_of_bytes(patched: pytest.MonkeyPatch) -> None:
    """Believe what was read: no hashes of objects and groups, no sums over cells, no state digests."""
    for module in (patch, patch_head, plain_shard, coded_shard):
        patched.setattr(module, "blake3", _Blind)
    patched.setattr(Digest, "__eq__", lambda self, other: True)


class _Blind:
    """A hash that is whatever it is compared with."""

    AUTO = blake3.AUTO

    def __init__(self, data: Any = b"", max_threads: int = 1) -> None:
        self._real = blake3(data)

    def update(self, data: Any) -> None:
        self._real.update(data)

    def digest(self) -> bytes:
        return _AnyBytes(self._real.digest())

    def hexdigest(self) -> str:
        return _AnyText(self._real.hexdigest())


class _AnyBytes(bytes):
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = bytes.__hash__


class _AnyText(str):
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


def _baseline_first(patched: pytest.MonkeyPatch) -> None:
    """Let the state to diff against run ahead of the log: a failed push takes nothing back."""

    def take_back(self: Any, push: Any, error: BaseException) -> None:
        self.generation += 1
        self.failure = error
        push.shadow.version = push.version - 1

    patched.setattr(Baseline, "take_back", take_back)


def _hint_is_truth(patched: pytest.MonkeyPatch) -> None:
    """Read no further than the hint says."""
    real = Records.read

    def read(self: Any, seq: int) -> Any:
        try:
            hinted = Head.unseal(self._store.get(keys.HEAD)).seq
        except (NotFound, SchemaError):
            hinted = seq
        return real(self, seq) if seq <= hinted else None

    patched.setattr(Records, "read", read)


def _no_grace(patched: pytest.MonkeyPatch) -> None:
    """Delete what was retired at once."""
    real = Collector.collect

    def collect(self: Any, policy: Any, *, dry_run: bool = True) -> Any:
        return real(self, dataclasses.replace(policy, grace_seconds=0.0), dry_run=dry_run)

    patched.setattr(Collector, "collect", collect)


def _own_clock(patched: pytest.MonkeyPatch) -> None:
    """Measure ages by a clock that is ten minutes fast."""
    real = StoreClock.now
    patched.setattr(StoreClock, "now", lambda self: real(self) + timedelta(seconds=600))


def _orphans_unretired(patched: pytest.MonkeyPatch) -> None:
    """Delete old objects that no record names, without a record that says so."""
    patched.setattr(survey, "can_be_named", lambda state, key: False)
    patched.setattr(collector, "is_garbage", lambda state, key: not state.is_live(key))


def _no_liveness(patched: pytest.MonkeyPatch) -> None:
    """Take what the log names for an orphan."""
    real = survey.survey

    def blind(store: Any, state: Any, *args: Any, **options: Any) -> Any:
        found = real(store, RunState(state.run), *args, **options)
        found.deletable += found.orphans
        return found

    patched.setattr(collector, "survey", blind)
    patched.setattr(collector, "is_garbage", lambda state, key: True)


def _no_ways(patched: pytest.MonkeyPatch) -> None:
    """Keep the versions that the policy keeps, and not those on the way to them."""
    patched.setattr(plan, "_keep_routes", lambda *needs: None)
    patched.setattr(collector, "harm", lambda *retirement: None)


def short_merge(patched: pytest.MonkeyPatch) -> None:
    """Let a compactor forget the last patch of a merge: no safeguard is gone, so nothing must be seen."""
    real: Callable[..., Any] = Compactor._merge_along

    def merge_along(compactor: Compactor, state: RunState, work: Any, legs: Any) -> Any:
        return real(compactor, state, work, legs[: max(1, len(legs) - 1)])

    patched.setattr(Compactor, "_merge_along", merge_along)


def _unverified_merge(patched: pytest.MonkeyPatch) -> None:
    short_merge(patched)
    patched.setattr(Compactor, "_verify", lambda *work: None)


def _no_leases(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(collector, "read_leases", lambda *_, **__: Leases())


MUTANTS = (
    Mutant("write id: own", "a refused record is read back, and is one's own only by its write id", _refused_is_own),
    Mutant(
        "write id: lost",
        "a refused record that carries one's own write id is a success",
        _refused_is_lost,
        LOST,
        seed=10,
    ),
    Mutant("epoch", "a writer stops at a newer epoch", _no_epoch_check, seed=11),
    Mutant("create if absent", "records are created, never replaced", _no_conditional_put),
    Mutant("order of writes", "objects are stored before the record that names them", _record_first, seed=2),
    Mutant("checks of bytes", "what is read is checked against its hashes and digests", _no_checks_of_bytes, DAMAGE),
    Mutant("hint", "the hint of the newest record is never taken for the truth", _hint_is_truth, seed=2),
    Mutant("verified merge", "a merged patch is compared with the state digests first", _unverified_merge, seed=1),
    Mutant("grace", "what is retired stays until its grace time is over", _no_grace, seed=3),
    Mutant("clock", "ages are by the store's clock alone", _own_clock, seed=4),
    Mutant(
        "orphans", "the key of an orphan is retired before the object is deleted", _orphans_unretired, STALLS, seed=8
    ),
    Mutant("liveness", "what is deleted is not live in the newest state of the log", _no_liveness, seed=1),
    Mutant("leases", "what a reader's lease names is kept", _no_leases),
    Mutant("ways", "the versions on the way to a kept one are kept", _no_ways),
    Mutant("baseline", "what is diffed against advances only with the log", _baseline_first, LOST, seed=1),
)
