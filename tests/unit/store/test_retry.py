"""Trying again: for how long, how often, and once only where one that repeats lies within another."""

from __future__ import annotations

import errno
import itertools
import logging
import random
import threading
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from pulse_registry.errors import AlreadyExists, InvalidArgument, NotFound, PulseError, StoreUnavailable
from pulse_registry.log import LogReader, LogWriter, utc_now
from pulse_registry.log.clock import random_id
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.registry import Registry
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.store import FileStore, MemoryStore, PrefixStore, RetryStore, Store
from pulse_registry.store.http_dates import seconds_asked
from pulse_registry.store.os_errors import translated
from pulse_registry.store.wrappers.retry import TOTAL_S, RetryPolicy, retrying_at_most
from pulse_registry.testing import CountingStore, Fault, FaultStore
from tests.support.clock import Clock

SEEDS = range(5)
_names = (f"test-retry-{number}" for number in itertools.count())


def memory() -> MemoryStore:
    return MemoryStore(next(_names))


def retrying(store: Store, clock: Clock | None = None, seed: int = 1, **options: float) -> RetryStore:
    clock = clock or Clock()
    return RetryStore(store, RetryPolicy(clock=clock, sleep=clock.sleep, rng=random.Random(seed), **options))


def away(store: Store, clock: Clock, seconds: float = float("inf")) -> FaultStore:
    """Return the store as it is for whoever asks it too early."""
    return FaultStore(store, [Fault("fail_before", matches=lambda verb, key: clock.now < seconds)])


def asking(retry_after_s: float | None = None, *, throttled: bool = False, lasting: bool = False) -> StoreUnavailable:
    error = StoreUnavailable("busy")
    error.retry_after_s, error.throttled, error.lasting = retry_after_s, throttled, lasting
    return error


# for how long


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("seconds", [0.5, 2, 10, 25, 30])
def test_a_store_that_is_away_for_up_to_the_whole_time_is_waited_for(seconds: float, seed: int) -> None:
    clock, counting = Clock(), CountingStore(memory())
    store = retrying(away(counting, clock, seconds), clock, seed)
    store.put("key", b"data")
    assert store.get("key") == b"data"
    assert counting.calls == {"put": 1, "get": 1}
    assert clock.now <= TOTAL_S


@pytest.mark.parametrize("seconds", [2, 10, 25])
def test_pushes_and_pulls_outlive_a_store_that_is_away(seconds: float) -> None:
    below, clock = memory(), Clock()
    gone_until = 0.0
    faults = FaultStore(below, [Fault("fail_before", matches=lambda verb, key: clock.now < gone_until)])
    around = Dependencies(retrying=lambda store: retrying(store, clock))
    weights = {"w": np.arange(64, dtype=np.float32)}
    with Registry(faults, "run", Options(compute=ComputeOptions(backend="reference")), dependencies=around) as registry:
        for step in range(4):
            weights["w"][step] += 1
            gone_until = clock.now + seconds
            assert registry.push(step, weights).version == step
    gone_until = clock.now + seconds
    with Registry(faults, "run", Options(compute=ComputeOptions(backend="reference")), dependencies=around) as registry:
        pulled = {"w": np.zeros(64, ml_dtypes.bfloat16)}
        registry.pull("latest", into=pulled)
    assert np.array_equal(pulled["w"], weights["w"].astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_that_is_away_for_good_is_given_up_when_the_time_is_over(seed: int) -> None:
    clock = Clock()
    faults = away(memory(), clock)
    with pytest.raises(
        StoreUnavailable, match=r"injected fault.*'key'.*gave up after \d+ attempts in 30.0 s"
    ) as caught:
        retrying(faults, clock, seed).size("key")
    assert clock.now == pytest.approx(TOTAL_S)
    assert len(faults.fired) < 40
    assert isinstance(caught.value.__cause__, StoreUnavailable)
    assert caught.value.lasting


def test_the_time_counts_from_the_first_failure() -> None:
    clock = Clock()

    class Slow(CountingStore):
        def put(self, key: str, data: object, *, if_absent: bool = False) -> None:
            clock.now += 600.0  # minutes of upload, and all in vain
            super().put(key, data, if_absent=if_absent)  # type: ignore[arg-type]

    counting = Slow(FaultStore(memory(), [Fault("fail_before", times=1)]))
    retrying(counting, clock).put("key", b"data")
    assert counting.calls == {"put": 2}
    failing = Slow(FaultStore(memory(), [Fault("fail_before")]))
    with pytest.raises(StoreUnavailable, match="gave up after 2 attempts"):
        retrying(failing, clock).put("key", b"data")


def test_pauses_grow_are_drawn_at_random_and_are_bounded() -> None:
    clock = Clock()
    with pytest.raises(StoreUnavailable):
        retrying(away(memory(), clock), clock, 5, total_s=2000.0, first_pause_s=1.0, longest_pause_s=8.0).exists("key")
    bounds = [min(8.0, 2.0**number) for number in range(len(clock.pauses))]
    assert len(clock.pauses) > 400
    assert all(0 <= pause <= bound for pause, bound in zip(clock.pauses, bounds, strict=True))
    assert max(clock.pauses) > 7.0
    assert len(set(clock.pauses)) == len(clock.pauses)


def test_without_time_each_call_is_made_once() -> None:
    faults = FaultStore(memory(), [Fault("fail_before")])
    with pytest.raises(StoreUnavailable, match=r"during get of 'key'$") as caught:
        retrying(faults, total_s=0.0).get("key")
    assert caught.value.lasting
    assert len(faults.fired) == 1


def test_other_errors_pass_at_once() -> None:
    counting = CountingStore(memory())
    store = retrying(counting)
    with pytest.raises(NotFound):
        store.get("missing")
    store.put("key", b"", if_absent=True)
    with pytest.raises(AlreadyExists):
        store.put("key", b"", if_absent=True)
    with pytest.raises(InvalidArgument):
        store.get("/")
    assert counting.calls == {"get": 2, "put": 2}


def test_a_create_whose_answer_was_lost_finds_its_own_object() -> None:
    below = memory()
    store = retrying(FaultStore(below, [Fault("fail_after", verb="put", nth=1)]))
    with pytest.raises(AlreadyExists):
        store.put("key", b"mine", if_absent=True)
    assert below.get("key") == b"mine"


def test_a_broken_listing_goes_on_without_losing_or_repeating_a_key() -> None:
    below = memory()
    keys = [f"log/{number:03d}" for number in range(100)]
    for key in keys:
        below.put(key, b"")
    faults = FaultStore(below, [Fault("fail_after", verb="list", times=20)], seed=3)
    assert [*retrying(faults, total_s=1e6).list("log/", after="log/009")] == keys[10:]
    assert len(faults.fired) > 3


def test_broken_folders_go_on_without_losing_or_repeating_one() -> None:
    below = memory()
    folders = [f"run-{number:03d}/" for number in range(100)]
    for folder in folders:
        below.put(f"{folder}head", b"")
    faults = FaultStore(below, [Fault("fail_after", verb="list", times=20)], seed=3)
    assert [*retrying(faults, total_s=1e6).folders("", after="run-009/")] == folders[10:]
    assert len(faults.fired) > 3


@pytest.mark.parametrize("options", [{"total_s": -1.0}, {"first_pause_s": -1.0}, {"longest_pause_s": 0.0}])
def test_bounds_of_retries_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        retrying(memory(), **options)


def test_a_long_wait_is_told_of_and_a_short_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pulse_registry")
    clock = Clock()
    retrying(away(memory(), clock, 1.0), clock).put("key", b"")
    assert caplog.messages == []
    clock = Clock()
    retrying(away(memory(), clock, 25.0), clock).put("key", b"")
    assert 1 <= len(caplog.messages) <= 3
    assert all("'key'; it is tried again for up to" in message for message in caplog.messages)


# what the store asks for


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pause_is_at_least_as_long_as_the_store_asks_for(seed: int) -> None:
    clock = Clock()
    failures = iter([asking(7.0), asking(3.0)])
    retries = RetryPolicy(clock=clock, sleep=clock.sleep, rng=random.Random(seed))

    def call() -> str:
        if error := next(failures, None):
            raise error
        return "done"

    assert retries(call) == "done"
    assert 7.0 <= clock.pauses[0] <= 7.1
    assert 3.0 <= clock.pauses[1] <= 3.2


def test_a_store_that_asks_for_more_time_than_is_left_is_asked_once_more_at_the_end_of_it() -> None:
    clock = Clock()
    asked: list[float] = []

    def call() -> None:
        asked.append(clock.now)
        raise asking(3600.0)

    with pytest.raises(StoreUnavailable) as caught:
        RetryPolicy(clock=clock, sleep=clock.sleep)(call)
    assert asked == [0.0, TOTAL_S]
    assert caught.value.retry_after_s == 3600.0


def test_a_store_that_is_asked_too_much_is_asked_less_often() -> None:
    def pauses(*, throttled: bool) -> list[float]:
        clock = Clock()

        def call() -> None:
            raise asking(throttled=throttled)

        with pytest.raises(StoreUnavailable):
            RetryPolicy(clock=clock, sleep=clock.sleep, rng=random.Random(3))(call)
        return clock.pauses

    usual, throttled = pauses(throttled=False), pauses(throttled=True)
    assert throttled[:3] == pytest.approx([10 * pause for pause in usual[:3]])
    assert len(throttled) < len(usual)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0 "}, 0.0),
        ({"retry-after": "9" * 400}, 3600.0),
        ({"retry-after": "-7"}, None),
        ({"retry-after": "1.5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:27:00 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 -0000", "date": "Wed, 21 Oct 2015 08:28:00 +0100"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 9999 07:28:30 GMT", "date": "yesterday"}, 3600.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 -2300"}, None),
    ],
)
def test_what_a_server_asks_for_is_read_in_both_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert seconds_asked(headers) == seconds


# one within another


def test_what_was_given_up_within_is_not_tried_again_around_it() -> None:
    clock = Clock()
    faults = away(memory(), clock)
    store = retrying(retrying(retrying(faults, clock), clock), clock)
    with pytest.raises(StoreUnavailable, match=r"gave up after \d+ attempts in 30.0 s$"):
        store.get("key")
    assert clock.now == pytest.approx(TOTAL_S)
    assert len(faults.fired) < 40


def test_what_somebody_has_to_see_to_first_is_not_tried_again() -> None:
    faults = FaultStore(memory(), [Fault("fail_before", error=lambda verb, key: asking(lasting=True))])
    with pytest.raises(StoreUnavailable, match=r"^busy$"):
        retrying(faults).put("key", b"")
    assert len(faults.fired) == 1


@pytest.mark.parametrize(
    ("number", "lasting"),
    [(errno.ENOSPC, True), (errno.EACCES, True), (errno.EROFS, True), (errno.EIO, False), (errno.EMFILE, False)],
)
def test_a_disk_that_is_full_or_closed_to_us_stays_so_and_one_that_fails_may_not(number: int, lasting: bool) -> None:
    with pytest.raises(StoreUnavailable) as caught, translated("put", "key", "file:///root"):
        raise OSError(number, "it failed")
    assert caught.value.lasting is lasting


def test_a_folder_that_may_not_be_written_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    clock = Clock()

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("os.mkdir", forbidden)
    with pytest.raises(StoreUnavailable, match="Permission denied"):
        retrying(FileStore(f"{tmp_path}/deep"), clock).put("key", b"")
    assert clock.pauses == []


def test_a_commit_to_a_store_that_is_away_waits_for_it_once() -> None:
    clock, asked = Clock(), []

    def is_gone(verb: str, key: str) -> bool:
        asked.append(verb)
        return "put" in asked  # from the create of the record on

    store = PrefixStore(retrying(FaultStore(memory(), [Fault("fail_before", matches=is_gone)]), clock), "run")
    writer = LogWriter(store, "run", LogReader(store, "run"), utc_now, random_id, "writer")
    with pytest.raises(StoreUnavailable, match="gave up"):
        writer.begin()
    assert clock.now == pytest.approx(TOTAL_S)
    assert asked[-2:] == ["put", "get"], "it is read back once, whether the record has landed"


def test_a_bound_holds_for_its_block_and_its_thread() -> None:
    clock = Clock()
    store = retrying(away(memory(), clock), clock)

    def waited(call: Callable[[], object] = lambda: store.exists("key")) -> float:
        began = clock.now
        with pytest.raises(PulseError):
            call()
        return clock.now - began

    with retrying_at_most(2.0):
        assert waited() == pytest.approx(2.0)
        with retrying_at_most(0.0):
            assert waited() == 0.0
        with retrying_at_most(1000.0):
            assert waited() == pytest.approx(2.0)
        others: list[float] = []
        thread = threading.Thread(target=lambda: others.append(waited()))
        thread.start()
        thread.join()
        assert others == [pytest.approx(TOTAL_S)]
    assert waited() == pytest.approx(TOTAL_S)
