"""The benchmark of the mirror runs, at a size whose times mean nothing, and says what it is to say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.link import Link
from benchmarks.mirror.copies import WAYS
from benchmarks.mirror.egress import measure_egress
from benchmarks.mirror.news import News
from benchmarks.mirror.suite import Size, measure
from benchmarks.results import Row, rows_of
from benchmarks.synthetic import synthetic_states
from tests.support.servers import S3Server


@pytest.fixture
def environment(moto: S3Server) -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patched:
        for name, value in moto.environment.items():
            patched.setenv(name, value)
        yield moto


@pytest.mark.slow
def test_both_ways_copy_a_keyframe_and_each_version_is_followed(environment: S3Server) -> None:
    states, size = synthetic_states(20_000, 2, 0), Size(keyframe_bytes=1 << 20, rounds=1, pause_s=0.01, hosts=2)
    found = measure((environment, environment), states, size, lambda _: None, Link("none", 10_000, 1.0))
    rows: dict[str, Row] = {row.key: row for row in rows_of(found)}
    assert {way: len(copies) for way, copies in found["copies"].items()} == dict.fromkeys(WAYS, 1)
    assert len(found["news"]) == 2
    assert rows["rate.ratio"].value > 0
    assert (rows["rate.ratio"].limit, rows["news.worst"].limit, rows["memory"].limit) == (0.85, 4.0, 256.0)
    assert rows["egress.hosts.mb"].value > rows["egress.mirror.mb"].value


def test_a_mirror_takes_each_byte_over_the_long_way_once_and_each_host_for_itself() -> None:
    states = synthetic_states(400_000, 3, 0)
    two, four = measure_egress(states, 2), measure_egress(states, 4)
    assert four.mirror.nbytes == pytest.approx(two.mirror.nbytes, rel=0.01)
    assert four.hosts.nbytes == pytest.approx(2 * two.hosts.nbytes, rel=0.01)
    assert two.stored < two.mirror.nbytes < 0.6 * two.hosts.nbytes


def test_a_mirror_that_follows_asks_for_little_besides_what_is_new() -> None:
    steps = 8
    found = measure_egress(synthetic_states(200_000, steps, 0), 1)
    assert found.mirror.requests == 3 * steps  # the record, its patch, and the record after it, which is not there yet


def test_the_transfer_is_set_off_before_round_trips_are_counted() -> None:
    link = Link("1 Gbit/s, 150 ms", 1000, 75.0)
    assert News(nbytes=12_500_000, seconds=0.1 + 0.45).round_trips(link) == pytest.approx(3.0)
