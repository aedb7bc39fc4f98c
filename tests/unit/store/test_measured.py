"""The price of an object: measured from reads, steady, bounded, and what was set where it was."""

from __future__ import annotations

import itertools

import pytest

import pulse_registry
from pulse_registry.errors import InvalidArgument
from pulse_registry.store import Store
from pulse_registry.store.prices import USUAL, Prices
from pulse_registry.store.wrappers.measured import (
    LARGE_BYTES,
    SMALL_BYTES,
    MeasuredStore,
    ReadTimes,
)
from pulse_registry.testing import LatencyStore
from tests.support.clock import Clock
from tests.support.records import DictStore


def measured(latency_s: float, bytes_per_s: float | None, reads: int = 8) -> Prices:
    clock, link, inner = Clock(), ReadTimes(), DictStore()
    inner.objects = {"small": bytes(100), "large": bytes(1 << 20)}
    slow = LatencyStore(inner, latency_s=latency_s, bytes_per_s=bytes_per_s, clock=clock, sleep=clock.sleep)
    store: Store = MeasuredStore(slow, link, clock)
    for _ in range(reads):
        store.get("small")
        store.get_into("large", (0, 1 << 20), memoryview(bytearray(1 << 20)))
    return link.prices()


@pytest.mark.parametrize(
    ("latency_s", "bytes_per_s", "expected"),
    [(0.03, 80e6, 2 << 20), (0.15, 10e6, 1 << 20), (0.001, 100e6, 64 << 10), (0.0, 1e9, 16 << 10)],
)
def test_an_object_costs_what_the_link_carries_while_a_request_waits(latency_s, bytes_per_s, expected):
    assert measured(latency_s, bytes_per_s).object_cost == expected
    assert expected == 16 << 10 or expected <= latency_s * bytes_per_s < 2 * expected


@pytest.mark.parametrize(
    ("bytes_per_s", "expected"), [(10e6, 0), (60e6, 1), (101e6, 2), (1e9, 16), (3e9, 32), (1e12, 64)]
)
def test_a_changed_cell_costs_what_the_link_carries_while_it_is_decoded(bytes_per_s, expected):
    assert measured(0.0, bytes_per_s).cell_cost == expected


def test_a_link_without_measurable_time_has_a_price_within_the_bounds():
    assert measured(0.0, None) == Prices(16 << 10, 64)


def test_the_farthest_and_widest_link_has_a_price_within_the_bounds():
    link = ReadTimes()
    for _ in range(9):
        link.note(100, 1.0)
        link.note(64 << 20, 1.5)
    assert link.prices().object_cost == 16 << 20


def test_until_enough_was_read_of_both_kinds_the_price_is_the_usual_one():
    assert measured(0.1, 1e6, reads=4) == USUAL
    link = ReadTimes()
    for _ in range(100):
        link.note(SMALL_BYTES, 0.1)
        link.note((SMALL_BYTES + LARGE_BYTES) // 2, 0.5)
    assert link.prices() == USUAL


def test_one_slow_read_changes_nothing():
    steady, shaken = ReadTimes(), ReadTimes()
    for number in range(9):
        for link in (steady, shaken):
            link.note(1000, 90.0 if link is shaken and number == 4 else 0.02)
            link.note(1 << 20, 90.0 if link is shaken and number == 5 else 0.12)
    assert shaken.prices() == steady.prices() == Prices(128 << 10, 0)


def test_what_was_set_stands_whatever_is_measured():
    link = ReadTimes(7, 3)
    for _ in range(20):
        link.note(100, 1.0)
        link.note(1 << 20, 2.0)
    assert link.prices() == (7, 3)


def test_a_failed_read_is_not_measured():
    link, ticks = ReadTimes(), itertools.count()
    store = MeasuredStore(DictStore(), link, lambda: float(next(ticks)))
    for _ in range(20):
        with pytest.raises(pulse_registry.NotFound):
            store.get("none")
    assert link.prices() == USUAL
    assert next(ticks) == 20


@pytest.mark.parametrize("price", ["object_cost", "cell_cost"])
def test_a_negative_price_is_refused_on_opening(tmp_path, price):
    with pytest.raises(InvalidArgument, match=f"{price} is -1"):
        pulse_registry.open(str(tmp_path), run="r", network=pulse_registry.NetworkOptions(**{price: -1}))
    with pytest.raises(InvalidArgument, match=f"{price} is -1"):
        ReadTimes(**{price: -1})


def test_a_run_s_routes_follow_the_price_that_was_set(tmp_path):
    import numpy as np

    weights = {"w": np.zeros(1000, np.uint16)}
    with pulse_registry.open(
        str(tmp_path),
        run="r",
        push=pulse_registry.PushOptions(keyframe_every=4),
        compute=pulse_registry.ComputeOptions(backend="reference"),
    ) as registry:
        for step in range(4):
            weights["w"][step] += 1
            registry.push(step, weights)
    for price, kinds in ((0, ["patch"] * 3), (10**6, ["keyframe"])):
        with pulse_registry.open(
            str(tmp_path),
            run="r",
            compute=pulse_registry.ComputeOptions(backend="reference"),
            network=pulse_registry.NetworkOptions(object_cost=price),
        ) as registry:
            assert [leg.kind for leg in registry.route(3, have=0).legs] == kinds
            into = {"w": np.zeros(1000, np.uint16)}
            registry.pull(0, into=into)
            assert [leg.kind for leg in registry.stage(3, into=into).route.legs] == kinds
