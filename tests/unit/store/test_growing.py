"""Bodies that grow while they are stored: in parts to S3, and to every other store as one piece."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import AccessDenied, AlreadyExists, CorruptObject, InvalidArgument, StoreUnavailable
from pulse_registry.store import Growing, MemoryStore, PrefixStore, RetryStore, S3Location, S3Store, Store, create
from pulse_registry.store.body import Buffer
from pulse_registry.store.parts import growing_parts
from pulse_registry.store.wrappers.retry import RetryPolicy
from pulse_registry.testing import CountingStore
from tests.support.misbehaving_s3 import Request
from tests.support.servers import S3Bucket
from tests.support.waiting import HANG_S
from tests.unit.store.test_s3_faults import MIB, Multipart, error, lost, served

pytestmark = pytest.mark.usefixtures("_credentials")

LARGE = [bytes([number + 1]) * (700_001 + number) for number in range(18)]
"""Some 12 MiB: with parts of 5 MiB, three."""


@pytest.fixture
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")


def grown(rest: Sequence[bytes] = LARGE, first: bytes = b"head") -> Growing:
    return Growing(iter(rest), lambda: first)


def whole(rest: Sequence[bytes] = LARGE, first: bytes = b"head") -> bytes:
    return b"".join((first, *rest))


# the body


def test_a_body_that_grows_is_a_sequence_with_the_first_buffer_first() -> None:
    made: list[str] = []

    def rest() -> Iterator[bytes]:
        for name in ("b", "c"):
            made.append(name)
            yield name.encode()

    def first() -> bytes:
        made.append("a")
        return b"a"

    body = Growing(rest(), first)
    assert [*body] == [*body] == [b"a", b"b", b"c"]
    assert (len(body), body[0], body[1:]) == (3, b"a", [b"b", b"c"])
    assert made == ["b", "c", "a"], "each was made once, the first one last"


def test_what_was_looked_at_is_kept_and_the_rest_comes_as_it_is_asked_for() -> None:
    source = iter([b"12", b"", b"345", b"6", b"7"])
    body = Growing(source, lambda: b"0")
    assert body.reaches(5)
    assert next(source) == b"6", "no more was taken than it needs"
    assert [*body.rest()] == [b"12", b"", b"345", b"7"]
    assert not body.reaches(7)
    assert body.reaches(6)


@pytest.mark.parametrize("look", [len, list, Growing.first, lambda body: body.reaches(99)])
def test_an_error_in_the_making_is_raised_again_and_never_taken_for_the_end(look: Callable[[Growing], object]) -> None:
    def rest() -> Iterator[bytes]:
        yield b"1"
        raise CorruptObject("a wrong group")

    body = Growing(rest(), lambda: b"0")
    for _ in range(2):
        with pytest.raises(CorruptObject, match="wrong group"):
            look(body)


def test_sending_begins_when_all_is_there_or_when_a_store_says_so() -> None:
    ticks = itertools.count()
    body = Growing(iter([b"1"]), lambda: b"0", lambda: float(next(ticks)))
    assert body.sent_at == 0.0
    assert [*body.rest()] == [b"1"]
    assert body.sent_at == 0.0
    body.first()
    body.sending()
    assert body.sent_at == 1.0
    early = Growing(iter([b"1"]), lambda: b"0", lambda: float(next(ticks)))
    early.sending()
    early.first()
    assert early.sent_at == 3.0


@given(st.lists(st.binary(max_size=30), max_size=8), st.binary(max_size=20), st.integers(1, 20), st.integers(1, 20))
def test_parts_hold_all_bytes_and_the_first_one_comes_last(
    rest: list[bytes], first: bytes, least: int, size: int
) -> None:
    parts = [*growing_parts(grown(rest, first), least, size)]
    numbers = [number for number, _ in parts]
    assert numbers == [*range(2, len(parts) + 1), 1]
    assert b"".join(b"".join(views) for _, views in sorted(parts, key=lambda part: part[0])) == whole(rest, first)
    sizes = [sum(view.nbytes for view in views) for _, views in parts]
    assert all(found == size for found in sizes[:-2])
    assert all(0 < found <= size for found in sizes[:-1])
    assert sizes[-1] == len(first) + min(least, sum(map(len, rest)))
    assert all(view.nbytes for _, views in parts for view in views)


@given(st.lists(st.binary(min_size=1, max_size=30), max_size=8), st.integers(1, 20), st.integers(1, 20))
def test_a_part_is_given_as_soon_as_its_bytes_are_there(rest: list[bytes], least: int, size: int) -> None:
    came = 0

    def counted() -> Iterator[Buffer]:
        nonlocal came
        for buffer in rest:
            came += len(buffer)
            yield buffer

    given = least
    for _, views in growing_parts(Growing(counted(), lambda: b""), least, size):
        given += sum(view.nbytes for view in views)
        if given <= sum(map(len, rest)):
            assert came - given < max(map(len, rest))


# any store


def test_the_ledger_counts_the_bytes_of_what_grew() -> None:
    store = CountingStore(MemoryStore(uuid.uuid4().hex))
    store.put("key", grown([b"12", b"345"]))
    assert store.get("key") == b"head12345"
    assert store.bytes_written == 9


def test_a_create_of_what_is_there_already_has_succeeded_if_it_has_the_size() -> None:
    store = MemoryStore(uuid.uuid4().hex)
    create(store, "key", grown([b"12"]))
    create(store, "key", grown([b"12"]))
    with pytest.raises(AlreadyExists):
        create(store, "key", grown([b"123"]))


# real servers


@pytest.fixture(params=["moto", "seaweedfs"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> S3Bucket:
    found: S3Bucket = request.getfixturevalue(f"{request.param}_bucket")
    for name, value in found.server.environment.items():
        monkeypatch.setenv(name, value)
    return found


def opened(bucket: S3Bucket, prefix: str) -> Store:
    place = S3Location(bucket.name, bucket.server.endpoint, bucket.server.region, "path")
    return PrefixStore(RetryStore(S3Store(place, part_bytes=5 * MIB)), prefix)


def uploads(bucket: S3Bucket, prefix: str) -> list[Any]:
    found = bucket.server.client().list_multipart_uploads(Bucket=bucket.name, Prefix=prefix).get("Uploads", [])
    return [upload for upload in found if upload["Key"].startswith(prefix)]


@pytest.mark.slow
def test_what_grows_is_the_same_object_in_a_bucket(bucket: S3Bucket) -> None:
    prefix = uuid.uuid4().hex[:12]
    store = opened(bucket, prefix)
    for name, rest, parts in (("small", LARGE[:1], 1), ("two", LARGE[:10], 2), ("large", LARGE, 3)):
        store.put(name, grown(rest), if_absent=True)
        assert store.get(name) == whole(rest)
        answer = bucket.server.client().head_object(Bucket=bucket.name, Key=f"{prefix}/{name}")
        assert int(answer["ETag"].strip('"').partition("-")[2] or 1) == parts
    assert not uploads(bucket, prefix)


def test_what_grows_replaces_nothing_and_leaves_nothing_behind(bucket: S3Bucket) -> None:
    prefix = uuid.uuid4().hex[:12]
    store = opened(bucket, prefix)

    def overtaken() -> Iterator[bytes]:
        yield from LARGE
        store.put("key", b"theirs")  # after the look whether the key is free

    with pytest.raises(AlreadyExists):
        store.put("key", Growing(overtaken(), lambda: b"head"), if_absent=True)
    assert store.get("key") == b"theirs"

    def broken() -> Iterator[bytes]:
        yield from LARGE
        raise CorruptObject("a wrong group")

    with pytest.raises(CorruptObject, match="wrong group"):
        store.put("other", Growing(broken(), lambda: b"head"))
    assert not store.exists("other")
    assert not uploads(bucket, prefix)


# faults


def test_parts_go_up_while_the_rest_is_made() -> None:
    began = threading.Event()

    class Watched(Multipart):
        def __call__(self, request: Request) -> None:
            super().__call__(request)
            if 2 in self.parts:
                began.set()

    def rest() -> Iterator[bytes]:
        yield from LARGE
        assert began.wait(HANG_S), "no part was sent before the last buffer was there"
        yield b"the end"

    answers = Watched({})
    with served(answers) as (_, store):
        store.put("key", Growing(rest(), lambda: b"head"), if_absent=True)
    assert answers.done == whole([*LARGE, b"the end"])
    assert answers.counts == {"HEAD": 1, "begin": 1, "PUT": 3, "finish": 1}


def test_parts_that_fail_are_sent_again_and_no_others() -> None:
    answers = Multipart({("PUT", 1): error(503, "SlowDown"), ("PUT", 3): lost, ("begin", 1): error(500, "Internal")})
    with served(answers) as (_, store):
        store.put("key", grown(), if_absent=True)
    assert answers.done == whole()
    assert answers.counts == {"HEAD": 1, "begin": 2, "PUT": 5, "finish": 1}


def test_an_upload_that_fails_is_given_up() -> None:
    answers = Multipart({("PUT", count): error(403, "AccessDenied") for count in range(1, 9)})
    with served(answers) as (_, store), pytest.raises(AccessDenied):
        store.put("key", grown())
    assert answers.counts["DELETE"] == 1
    assert not answers.done


def test_an_upload_that_is_gone_is_made_anew_of_what_was_kept() -> None:
    answers = Multipart({("finish", 1): error(404, "NoSuchUpload")})
    with served(answers) as (_, store):
        RetryStore(store, RetryPolicy(first_pause_s=0.001)).put("key", grown(), if_absent=True)
    assert answers.done == whole()
    assert answers.counts["begin"] == answers.counts["DELETE"] + 1 == 2


def test_an_error_of_the_making_ends_the_upload_and_is_not_taken_for_the_end() -> None:
    def broken() -> Iterator[bytes]:
        yield from LARGE
        raise StoreUnavailable("the coder was not there")

    answers = Multipart({})
    with served(answers) as (_, store), pytest.raises(StoreUnavailable, match="coder was not there"):
        RetryStore(store, RetryPolicy(first_pause_s=0.001, total_s=0.01)).put("key", Growing(broken(), lambda: b"head"))
    assert answers.counts["DELETE"] == answers.counts["begin"] >= 1
    assert not answers.done


def test_an_upload_whose_last_answer_was_lost_has_succeeded() -> None:
    answers = Multipart({("finish", 1): lost, ("finish", 2): error(404, "NoSuchUpload")})
    with served(answers) as (_, store):
        store.put("key", grown())
    assert answers.done == whole()


def test_a_create_whose_answers_were_all_lost_finds_its_own_object() -> None:
    answers = Multipart({("finish", count): lost for count in range(1, 4)})
    with served(answers) as (_, store):
        create(RetryStore(store, RetryPolicy(first_pause_s=0.001)), "key", grown())
    assert answers.done == whole()
    assert answers.counts["begin"] == 1, "what is there is not sent again"


def test_a_store_that_wants_parts_of_one_size_gets_them_from_then_on() -> None:
    answers = Multipart({("finish", 1): error(400, "InvalidPart")})
    with served(answers) as (_, store):
        store.put("key", grown())
        assert answers.done == whole()
        assert {number: len(part) for number, part in answers.parts.items()}[1] == 5 * MIB
        answers.parts.clear()
        store.put("key", grown(LARGE[:15]))
    assert answers.done == whole(LARGE[:15])
    assert [len(part) for _, part in sorted(answers.parts.items())][:-1] == [5 * MIB, 5 * MIB]
    assert answers.counts["begin"] == 3


def test_what_a_store_does_not_take_at_all_is_told_and_changes_nothing() -> None:
    answers = Multipart({("finish", count): error(400, "InvalidRequest") for count in (1, 2)})
    with served(answers) as (_, store):
        with pytest.raises(InvalidArgument):
            store.put("key", grown())
        store.put("key", grown())
    assert answers.done == whole()
    assert answers.parts[1].startswith(b"head")
    assert len(answers.parts[1]) == 5 * MIB + len(b"head"), "it still goes up while it grows"
