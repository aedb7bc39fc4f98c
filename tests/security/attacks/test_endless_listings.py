"""A bucket that lists, or holds, more keys than there can be: so many are looked at, and memory stays in bounds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from fastapi.testclient import TestClient

from pulse_registry.errors import CorruptObject
from pulse_registry.format import keys
from pulse_registry.log import LogReader, sealed_hash
from pulse_registry.log import gap as gap_module
from pulse_registry.log import reader as reader_module
from pulse_registry.log import snapshots as snapshots_module
from pulse_registry.log.fold import advance
from pulse_registry.log.store_clock import StoreClock
from pulse_registry.outer import log as outer_log_module
from pulse_registry.outer.log import OuterLog
from pulse_registry.retention import leases as leases_module
from pulse_registry.retention.leases import read_leases
from pulse_registry.retention.policy import RetentionPolicy
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange
from pulse_registry.testing import CountingStore
from pulse_schemas import Lease
from pulse_server.routes import log as log_module
from pulse_server.runs import reports as reports_module
from pulse_server.runs.reports import MAX_BYTES, Reports
from tests.security.attacks.peak import peak_of
from tests.support.apps import app_over, fill
from tests.support.records import RUN, DictStore, chain, keyframe
from tests.unit.outer.log import Log

MOST = 4 << 20


class Endless(DictStore):
    """Lists what it has, and then keys without end; how many were taken."""

    def __init__(self, key_of: Callable[[int], str]) -> None:
        super().__init__()
        self._key_of = key_of
        self.listed = 0

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        yield from super().list(prefix, after)
        for number in itertools.count(10**9):
            self.listed += 1
            yield self._key_of(number)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    most = 20_000
    monkeypatch.setattr(snapshots_module, "MOST_LISTED", most)
    monkeypatch.setattr(gap_module, "MOST_LISTED", most)
    return most


def test_snapshots_without_end_are_no_log_without_end(few: int) -> None:
    script, store = chain(3), Endless(keys.snapshot_key)
    script.store_in(store)
    reader = LogReader(store, RUN)
    assert peak_of(reader.refresh) < MOST
    assert reader.state.seq == script.state.seq
    assert store.listed <= few
    assert peak_of(reader.check_end) < MOST
    assert reader.state.seq == script.state.seq
    assert store.listed <= 2 * few


class Made(DictStore):
    """Has every record that is asked for: a log without end, each record of which follows the one before."""

    def __init__(self, *, collected: bool) -> None:
        super().__init__()
        self.script, self.asked = chain(1), 0
        self.script.store_in(self)
        self._collected = collected

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        seq = keys.record_seq(key)
        if seq is not None and key not in self.objects and seq < 3000:
            self.asked += 1
            number = self.script.state.latest.version
            made = {
                0: lambda: self.script.make_commit(version=number + 1, keyframe=keyframe(number + 1), patch=None),
                1: lambda: self.script.make_retire(versions=(number - 1,)),
                2: lambda: self.script.make_delete(),
            }
            record = made[seq % 3 if self._collected and number else 0]()
            self.objects[key] = record.seal()
            advance(self.script.state, record, sealed_hash(self.objects[key]))
        return super().get(key, byte_range, max_bytes=max_bytes)


def test_a_log_without_end_is_not_folded_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "LOG", 100_000)
    store = Made(collected=False)
    reader = LogReader(store, RUN)
    with pytest.raises(CorruptObject, match="readers take 100,000: retire and delete some"):
        reader.refresh()
    assert store.asked < 200
    with pytest.raises(CorruptObject, match="readers take 100,000"):
        reader.refresh()
    assert store.asked < 200, "it is not gone on with"


@pytest.mark.slow
def test_a_log_that_is_collected_may_be_as_long_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "LOG", 100_000)
    store = Made(collected=True)
    state = LogReader(store, RUN).refresh()
    assert state.seq == 2999
    assert sum(map(len, store.objects.values())) > 10 * 100_000


class MadeRounds(DictStore):
    """Has every outer record that is asked for, up to one; of rounds with checkpoints that are collected, or none."""

    def __init__(self, *, collected: bool) -> None:
        super().__init__()
        self.log, self.asked = Log(), 0
        self.log.join("a")
        self._collected = collected

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        seq = keys.record_seq(key.removeprefix("outer/"))
        if seq is None or seq >= 3000:
            return super().get(key, byte_range, max_bytes=max_bytes)
        self.asked += 1
        while seq >= len(self.log.records):
            state = self.log.state
            if self._collected and state.open - max((one.round for one in state.checkpoints), default=0) > 10:
                self.log.checkpoint(state.open - 1)
            elif state.spare > state.retired:
                self.log.retire(state.spare)
            elif state.retirements:
                self.log.delete(state.retired)
            else:
                self.log.send("a")
        return self.log.records[seq]


def test_an_outer_log_without_end_is_not_folded_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer_log_module, "LOG", 100_000)
    store = MadeRounds(collected=False)
    log = OuterLog(store, "run")
    for _ in range(2):
        with pytest.raises(CorruptObject, match="readers take 100,000: retire and delete some"):
            log.refresh()
        assert store.asked < 200


@pytest.mark.slow
def test_an_outer_log_that_is_collected_may_be_as_long_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer_log_module, "LOG", 100_000)
    store = MadeRounds(collected=True)
    assert OuterLog(store, "run").refresh().seq == 2999
    assert sum(map(len, store.log.records)) > 10 * 100_000


def test_of_more_living_leases_than_readers_can_be_none_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "MOST", 50)
    monkeypatch.setattr(leases_module, "BATCH", 20)
    store = DictStore()

    def held(number: int, seconds: int = 3600) -> None:
        lease = Lease(run=RUN, reader=f"w{number:03d}", version=0, seconds=seconds)
        store.put(keys.lease_key(lease.reader), lease.seal())

    for number in range(50):
        held(number)
    clock = StoreClock(store)
    assert len(read_leases(store, RUN, clock, datetime.now(UTC), RetentionPolicy()).held) == 50
    held(50)
    with pytest.raises(CorruptObject, match="more than 50 leases are alive"):
        read_leases(store, RUN, clock, datetime.now(UTC), RetentionPolicy())


def test_leases_that_have_run_out_are_deleted_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "MOST", 50)
    store = DictStore(lambda: datetime(2026, 1, 1, tzinfo=UTC))
    for number in range(120):
        lease = Lease(run=RUN, reader=f"w{number:03d}", version=0, seconds=1)
        store.put(keys.lease_key(lease.reader), lease.seal())
    found = read_leases(store, RUN, StoreClock(store), datetime(2026, 1, 2, tzinfo=UTC), RetentionPolicy())
    assert len(found.dead) == 50
    assert not found.held


def test_reports_of_replicas_that_there_can_not_be_are_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports_module, "_MOST_REPLICAS", 5)
    store = CountingStore(Endless(lambda number: f"{RUN}/reports/{number}.json"))
    Reports(store, replica="mine", now=lambda: datetime.now(UTC), share_s=5, keep_s=900).gather(RUN)
    assert store.calls["get"] <= 5


def test_a_replicas_reports_that_are_longer_than_any_are_not_read() -> None:
    store = CountingStore(DictStore())
    store.put(f"{RUN}/reports/other.json", bytes(MAX_BYTES + 1))
    reports = Reports(store, replica="mine", now=lambda: datetime.now(UTC), share_s=5, keep_s=900)
    assert peak_of(lambda: reports.gather(RUN)) < MOST
    assert store.bytes_read == 0


def test_a_service_lists_the_newest_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "_MOST_SNAPSHOTS", 5)
    store = DictStore()
    fill(store, chain(3))
    for seq in range(20):
        store.put(f"{RUN}/{keys.snapshot_key(seq)}", b"")
    with TestClient(app_over(store)) as client:
        assert client.get(f"/v1/runs/{RUN}/snapshots").json()["snapshots"] == [15, 16, 17, 18, 19]


@pytest.mark.slow
def test_a_page_of_long_records_is_read_as_far_as_it_goes() -> None:
    script, inner = chain(1), DictStore()
    for number in range(1, 100):
        record = script.make_commit(version=number, metadata={"note": "x" * (1 << 19)})
        script.records.append(record)
        advance(script.state, record, sealed_hash(record.seal()))
    fill(inner, script)
    store = CountingStore(inner)
    with TestClient(app_over(store)) as client:
        client.get(f"/v1/runs/{RUN}/log?since={script.state.seq}")
        store.reset()
        assert 10 < len(client.get(f"/v1/runs/{RUN}/log?since=0&limit=1000").json()["records"]) < 20
    assert sum(verb == "get" and "/log/" in key for verb, key in store.ledger) <= 32
