"""What a token may keep under names: bounded in number and bytes, renewed, and forgotten in time."""

from __future__ import annotations

import pytest

from pulse_registry.errors import InvalidArgument
from pulse_server.auth.quota import Quota
from pulse_server.errors import TooManyRequests
from tests.unit.server.edges import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quota(clock: Clock) -> Quota[str]:
    return Quota("leases", 3, 100, clock=clock.monotonic)


def test_a_token_keeps_so_many_names_and_no_token_takes_anothers_place(quota: Quota[str]) -> None:
    for name in "abcabc":
        quota.claim("one", name, 1, 60)
    with pytest.raises(TooManyRequests, match="has 3 leases of 3 bytes, and may have 3 of 100 bytes"):
        quota.claim("one", "d", 1, 60)
    quota.claim("two", "d", 1, 60)
    quota.release("one", "b")
    quota.release("one", "never")
    quota.release("nobody", "b")
    quota.claim("one", "d", 1, 60)


def test_bytes_count_as_the_newest_of_a_name_has_them(quota: Quota[str]) -> None:
    quota.claim("one", "a", 60, 60)
    with pytest.raises(TooManyRequests):
        quota.claim("one", "b", 41, 60)
    quota.claim("one", "a", 50, 60)
    quota.claim("one", "b", 50, 60)
    with pytest.raises(TooManyRequests):
        quota.claim("one", "a", 51, 60)


def test_what_is_not_renewed_makes_room_in_time_and_the_refusal_says_when(quota: Quota[str], clock: Clock) -> None:
    for name, seconds in (("a", 10), ("b", 20), ("c", 5)):
        quota.claim("one", name, 1, seconds)
    quota.claim("one", "c", 1, 500)
    clock.seconds += 4
    with pytest.raises(TooManyRequests) as refused:
        quota.claim("one", "d", 1, 60)
    assert refused.value.headers == {"retry-after": "1"}  # from before "c" was renewed
    clock.seconds += 1
    with pytest.raises(TooManyRequests) as refused:
        quota.claim("one", "d", 1, 60)
    assert refused.value.headers == {"retry-after": "5"}
    clock.seconds += 5
    quota.claim("one", "d", 1, 600)
    clock.seconds += 10
    quota.claim("one", "e", 1, 600)
    with pytest.raises(TooManyRequests) as refused:
        quota.claim("one", "f", 1, 60)
    assert refused.value.headers == {"retry-after": "60"}


def test_a_newcomer_displaces_what_its_token_renewed_least_recently(quota: Quota[str], clock: Clock) -> None:
    assert [quota.displace("one", name, 1, 60) for name in "abcad"] == [[], [], [], [], ["b"]]
    assert quota.displace("one", "e", 99, 60) == ["c", "a"]
    assert quota.displace("one", "f", 1_000, 60) == ["d", "e"]
    assert quota.displace("two", "f", 1, 60) == []
    clock.seconds += 60
    assert quota.displace("one", "g", 1, 60) == ["f"]


def test_a_quota_of_nothing_is_none() -> None:
    for names, nbytes in ((0, 1), (1, 0)):
        with pytest.raises(InvalidArgument):
            Quota("leases", names, nbytes, clock=Clock().monotonic)
