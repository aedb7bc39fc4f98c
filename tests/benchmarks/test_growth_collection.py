"""Garbage collection grows with the sum of leases, tags and orphans, by counts of calls and of requests."""

from __future__ import annotations

import pytest

from benchmarks.growth.collection import Crowd, curves, requests
from benchmarks.growth.curve import curve_of
from tests.support.counting import calls

SIZES = (400, 1600)


@pytest.mark.slow
def test_a_plan_is_linear_in_leases_tags_orphans_and_versions() -> None:
    crowds = [Crowd.of(size) for size in SIZES]
    counts = [calls(crowd.plan) for crowd in crowds]
    assert curve_of("k", "plan", "of each", "calls", zip(SIZES, counts, strict=True)).exponent <= 1.1


@pytest.mark.slow
def test_the_look_whether_it_does_harm_is_linear_too() -> None:
    counts = []
    for size in SIZES:
        crowd = Crowd.of(size)
        plan = crowd.plan()
        assert plan.versions
        assert len(plan.orphans) == size
        after = crowd.after(plan)
        counts.append(calls(lambda crowd=crowd, plan=plan, after=after: crowd.look_again(plan, after)))
    assert curve_of("k", "harm", "of each", "calls", zip(SIZES, counts, strict=True)).exponent <= 1.1


def test_each_lease_takes_two_requests_and_each_orphan_two() -> None:
    few, many = requests(5), requests(25)
    assert many - few == 20 * 4


def test_every_curve_has_a_limit_and_a_name_of_its_own() -> None:
    found = curves(quick=True)
    assert len({curve.key for curve in found}) == len(found) == 3
    assert all(curve.limit is not None and curve.points for curve in found)
