"""What grows with the runs of a root, by counts of requests."""

from __future__ import annotations

import pytest

from benchmarks.growth.runs import Pages, bucket_lists, curves


@pytest.mark.parametrize(("runs", "lists"), [(0, 1), (10, 1), (999, 1), (1000, 2), (1999, 2), (2500, 3)])
def test_a_list_of_runs_takes_a_request_for_each_thousand_names(runs: int, lists: int) -> None:
    assert bucket_lists(runs) == lists  # one name of the root is no run's


def test_the_pages_are_those_of_s3() -> None:
    pages = Pages([f"a/{number}/x" for number in range(5)] + ["a/file", "b"])
    first = pages.list_objects_v2(Prefix="a/", MaxKeys=2, Delimiter="/")
    assert [found["Prefix"] for found in first["CommonPrefixes"]] == ["a/0/", "a/1/"]
    last = pages.list_objects_v2(Prefix="a/", MaxKeys=9, Delimiter="/", ContinuationToken="a/3/")
    assert (last["CommonPrefixes"], last["Contents"], last["IsTruncated"]) == (
        [{"Prefix": "a/4/"}],
        [{"Key": "a/file"}],
        False,
    )


@pytest.mark.slow
def test_every_curve_has_a_limit_and_a_name_of_its_own() -> None:
    found = curves(quick=True)
    assert len({curve.key for curve in found}) == len(found) == 4
    assert all(curve.limit is not None and curve.points for curve in found)
