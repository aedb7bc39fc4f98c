"""Who asks in vain again and again sends what was signed once; whatever else comes is boto3's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from pulse_registry.errors import AccessDenied, CorruptObject, InvalidArgument, NotFound, PulseError, StoreUnavailable
from pulse_registry.store import S3Location, S3Store
from pulse_registry.store.s3 import misses
from pulse_registry.store.s3.client import make_client
from pulse_registry.store.s3.misses import GOOD_S, Misses
from tests.support.clock import Clock
from tests.support.misbehaving_s3 import Misbehaving, Request, misbehaving
from tests.support.waiting import NEVER_S

KEY = "run/log/000000000007.json"
Step = Callable[[Request], None]


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")


def missing(request: Request) -> None:
    request.error(404, "NoSuchKey")


def error(status: int, code: str) -> Step:
    return lambda request: request.error(status, code)


@contextmanager
def served(*script: Step) -> Iterator[tuple[Misbehaving, S3Store]]:
    with misbehaving(*script) as server:
        yield server, S3Store(S3Location("bucket", server.url, "us-east-1", "path"), answer_s=NEVER_S)


def invocations(server: Misbehaving) -> list[str]:
    """The id that boto3 gives each request that it makes; one that is sent again keeps its own."""
    return [request.headers["amz-sdk-invocation-id"] for request in server.seen]


def test_what_was_not_there_is_asked_for_again_as_it_was_signed() -> None:
    with served(missing) as (server, store):
        for _ in range(4):
            with pytest.raises(NotFound, match=KEY):
                store.get(KEY)
    assert len(server.seen) == 4
    assert all((one.path, one.headers) == (server.seen[0].path, server.seen[0].headers) for one in server.seen)


def test_what_is_there_at_last_comes_with_the_request_that_found_it() -> None:
    def there(request: Request) -> None:
        request.answer(200, b"a record")

    with served(missing, missing, there) as (server, store):
        for _ in range(2):
            with pytest.raises(NotFound):
                store.get(KEY)
        assert store.get(KEY) == b"a record"
        assert invocations(server) == 3 * invocations(server)[:1]
        assert store.get(KEY) == b"a record"
        assert invocations(server)[3] != invocations(server)[0]  # what is there is no miss


def test_what_is_there_at_last_has_the_bounds_of_any_object() -> None:
    with served(missing, lambda request: request.answer(200, bytes(9))) as (server, store):
        with pytest.raises(NotFound):
            store.get(KEY)
        with pytest.raises(CorruptObject, match="9"):
            store.get(KEY, max_bytes=8)
        assert len(server.seen) == 2


@pytest.mark.parametrize("length", [4, 99])
def test_a_body_that_is_not_as_long_as_was_said_is_no_object(length: int) -> None:
    def cut(request: Request) -> None:
        request.answer(200, b"cut", length=length)
        request.drop()

    with served(missing, cut) as (_, store):
        with pytest.raises(NotFound):
            store.get(KEY)
        # Releases of botocore differ in who notices it, and in what words.
        with pytest.raises(StoreUnavailable, match=rf"3 of {length}\b|3 bytes read, {length - 3} more expected"):
            store.get(KEY)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (error(403, "AccessDenied"), AccessDenied),
        (error(403, "RequestTimeTooSkewed"), AccessDenied),
        (error(404, "NoSuchBucket"), InvalidArgument),
        (error(503, "SlowDown"), StoreUnavailable),
        (lambda request: request.answer(404), NotFound),
    ],
)
def test_any_other_answer_is_left_to_a_request_of_boto3(answer: Step, expected: type[PulseError]) -> None:
    with served(missing, answer) as (server, store):
        with pytest.raises(NotFound):
            store.get(KEY)
        with pytest.raises(expected):
            store.get(KEY)
        first, again, anew = invocations(server)
    assert again == first
    assert anew != first


def test_a_refusal_of_the_old_signature_alone_is_not_told() -> None:
    with served(missing, error(403, "ExpiredToken"), missing, missing) as (server, store):
        for _ in range(3):
            with pytest.raises(NotFound):
                store.get(KEY)
        first, again, anew, once_more = invocations(server)
    assert again == first
    assert anew == once_more != first


def test_a_connection_that_breaks_is_the_stores_failure() -> None:
    with served(missing, lambda request: request.drop(), missing) as (server, store):
        with pytest.raises(NotFound):
            store.get(KEY)
        with pytest.raises(StoreUnavailable, match=KEY):
            store.get(KEY)
        with pytest.raises(NotFound):
            store.get(KEY)
        first, again, anew = invocations(server)
    assert again == first
    assert anew != first


def test_a_range_is_never_a_miss() -> None:
    with served(missing) as (server, store):
        for _ in range(2):
            with pytest.raises(NotFound):
                store.get(KEY, (0, 4))
            with pytest.raises(NotFound):
                store.get(KEY)
    ranges = [request.headers.get("Range") for request in server.seen]
    assert ranges == ["bytes=0-3", None, "bytes=0-3", None]
    assert len({*invocations(server)}) == 3


class Answered:
    """A client whose requests are all answered by a missing object; tells what was signed, and what was sent."""

    def __init__(self) -> None:
        from botocore.awsrequest import AWSResponse

        self.client = make_client(S3Location("bucket", "http://127.0.0.1:1", "us-east-1", "path"), 5.0)
        self.signed: list[str] = []
        self.sent: list[str] = []

        def sign(request: Any, **_: object) -> None:
            self.signed.append(request.url.rpartition("/")[2])

        def send(request: Any, **_: object) -> Any:
            self.sent.append(request.url.rpartition("/")[2])
            return AWSResponse(request.url, 404, {}, _Body(b"<Error><Code>NoSuchKey</Code></Error>"))

        self.client.meta.events.register("before-sign.s3", sign)
        self.client.meta.events.register("before-send.s3", send)


class _Body:
    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        yield self._body


def ask(subject: Misses, key: str) -> None:
    from botocore.exceptions import ClientError

    with pytest.raises((NotFound, ClientError)):
        subject.get(key)


def test_a_request_is_signed_anew_before_its_signature_is_too_old() -> None:
    answered, clock = Answered(), Clock()
    subject = Misses(answered.client, "bucket", "s3://bucket", clock=clock)
    for seconds, signed in ((0.0, 1), (GOOD_S - 1, 1), (1.0, 2), (GOOD_S - 1, 2)):
        clock.now += seconds
        ask(subject, "a")
        assert len(answered.signed) == signed, seconds
    assert len(answered.sent) == 4


def test_the_requests_that_were_sent_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misses, "MOST", 3)
    answered = Answered()
    subject = Misses(answered.client, "bucket", "s3://bucket", clock=Clock())
    for key in "abcadabc":
        ask(subject, key)
    assert answered.signed == [*"abcdbc"]
    assert answered.sent == [*"abcadabc"]


@pytest.mark.slow
def test_many_threads_each_get_the_answer_of_their_own_key() -> None:
    def by_key(request: Request) -> None:
        key = request.path.rpartition("/")[2]
        if int(key) % 2:
            request.answer(200, key.encode())
        else:
            missing(request)

    with served(by_key) as (server, store), ThreadPoolExecutor(8) as pool:

        def get(number: int) -> bytes:
            try:
                return store.get(f"run/{number % 16}")
            except NotFound as failure:
                return str(failure).encode()

        got = [*pool.map(get, range(320))]
    for number, answer in enumerate(got):
        assert answer == b"%d" % (number % 16) or (number % 2 == 0 and b"'run/%d'" % (number % 16) in answer)
    assert len(server.seen) == 320
