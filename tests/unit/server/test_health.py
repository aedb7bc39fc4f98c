"""The probe knows when the store last answered, and a store that hangs is one that does not answer."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pulse_registry.client.problems import TYPE_PREFIX
from pulse_registry.errors import AccessDenied, CorruptObject, NotFound, StoreUnavailable
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange, MemoryStore, WrapperStore
from pulse_registry.testing import CountingStore
from pulse_server import create_app
from pulse_server.settings import Settings
from pulse_server.telemetry.probe import PROBE_KEY, StoreProbe
from tests.support.waiting import HANG_S, until
from tests.unit.server.calling import calling
from tests.unit.server.edges import Clock


class MoodyStore(WrapperStore):
    """Answers, fails or hangs, as a test says."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(uuid.uuid4().hex))
        self.error: Exception | None = None
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Semaphore(0)
        self.out = self.stuck = 0
        self._lock = threading.Lock()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        shut = not self.open.is_set()
        with self._lock:
            self.out += 1
            self.stuck += shut
        self.asked.release()
        self.open.wait()
        with self._lock:
            self.out -= 1
            self.stuck -= shut
        if self.error is not None:
            raise self.error
        return super().get(key, byte_range, max_bytes=max_bytes)


@contextmanager
def probing(store: MoodyStore, **options: Any) -> Iterator[StoreProbe]:
    probe = StoreProbe(store, **options)
    probe.start()
    try:
        yield probe
    finally:
        store.open.set()
        probe.stop()


def test_nothing_is_ready_before_the_first_answer() -> None:
    clock = Clock()
    probe = StoreProbe(MemoryStore(uuid.uuid4().hex), limit_s=4, clock=clock.monotonic)
    clock.seconds += 3
    assert (probe.ready, probe.age_s) == (False, 3)
    probe.ask()
    assert (probe.ready, probe.age_s) == (True, 0)


def test_an_answer_counts_for_so_long() -> None:
    clock = Clock()
    probe = StoreProbe(MemoryStore(uuid.uuid4().hex), limit_s=4, clock=clock.monotonic)
    probe.ask()
    clock.seconds += 4
    assert probe.ready
    clock.seconds += 0.001
    assert not probe.ready


@pytest.mark.parametrize(
    "answer", [None, NotFound("no such key"), AccessDenied("403"), CorruptObject("longer than any")]
)
def test_whatever_the_store_itself_says_is_an_answer(answer: Exception | None) -> None:
    store = MoodyStore()
    store.error = answer
    probe = StoreProbe(store)
    probe.ask()
    assert probe.ready


def test_a_store_that_fails_is_not_ready_and_the_reason_is_kept_for_the_log() -> None:
    store, clock = MoodyStore(), Clock()
    probe = StoreProbe(store, limit_s=4, clock=clock.monotonic)
    probe.ask()
    store.error = StoreUnavailable("connection refused")
    clock.seconds += 5
    probe.ask()
    assert (probe.ready, probe.problem) == (False, "connection refused")
    store.error = None
    probe.ask()
    assert (probe.ready, probe.problem) == (True, None)


def test_a_probe_is_one_small_read_and_no_listing() -> None:
    store = CountingStore(MemoryStore(uuid.uuid4().hex))
    StoreProbe(store).ask()
    assert store.ledger == [("get", PROBE_KEY)]


def test_a_store_that_hangs_is_down_and_up_again_when_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store, clock = MoodyStore(), Clock()
    with probing(store, every_s=0.02, limit_s=4, clock=clock.monotonic) as probe:
        until(lambda: len(caplog.messages) == 1)
        assert probe.ready
        store.open.clear()
        until(lambda: store.stuck == 8)  # as many as may be under way: no answer is
        clock.seconds += 5
        until(lambda: len(caplog.messages) == 2)
        assert not probe.ready
        assert probe.age_s > 4
        store.open.set()
        until(lambda: probe.ready)
        until(lambda: len(caplog.messages) == 3)
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR", "INFO"]
    assert "has not answered" in caplog.messages[1]


def test_questions_that_hang_do_not_pile_up() -> None:
    store = MoodyStore()
    store.open.clear()
    with probing(store, every_s=0.001):
        for _ in range(8):
            assert store.asked.acquire(timeout=HANG_S)
        assert not store.asked.acquire(timeout=0.1)


def test_a_probe_that_stopped_asks_no_more() -> None:
    store = MoodyStore()
    with probing(store, every_s=0.01) as probe:
        until(lambda: probe.ready)
    until(lambda: store.out == 0)
    while store.asked.acquire(blocking=False):
        pass
    assert not store.asked.acquire(timeout=0.1)
    assert not [thread for thread in threading.enumerate() if thread.name == "store-probe"]


def test_readyz_tells_of_a_store_that_is_down_while_healthz_stays_well() -> None:
    store = MoodyStore()
    clock = Clock()
    settings = Settings.read(root="memory://unused", insecure_open=True, probe_seconds=0.02, ready_seconds=4)
    with calling(create_app(settings, store, clock=clock.monotonic)) as call:
        until(lambda: call("GET", "/readyz").status == 200)
        assert json.loads(call("GET", "/readyz").body).keys() == {"status", "store_age_s"}
        store.open.clear()
        until(lambda: store.stuck == 8)
        clock.seconds += 5
        assert call("GET", "/readyz").status == 503
        refused = json.loads(call("GET", "/readyz").body)
        assert refused["type"] == f"{TYPE_PREFIX}StoreUnavailable"
        assert call("GET", "/healthz").status == 200
        store.open.set()
        until(lambda: call("GET", "/readyz").status == 200)


def test_a_store_that_goes_down_is_known_within_five_seconds_by_default() -> None:
    settings = Settings.read(root="memory://unused")
    assert settings.ready_seconds + settings.probe_seconds / 2 < 5
