"""What an S3 store raises when the server, or what lies between, does not do as it should."""

from __future__ import annotations

import http.client
import io
import math
import random
import socket
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from ssl import SSLContext

import pytest
from botocore.response import StreamingBody
from urllib3 import HTTPResponse

from pulse_registry.errors import (
    AccessDenied,
    AlreadyExists,
    CorruptObject,
    InvalidArgument,
    NotFound,
    PulseError,
    StoreUnavailable,
)
from pulse_registry.store import RetryStore, S3Location, S3Store, Stream
from pulse_registry.store.s3 import body, client
from pulse_registry.store.s3.client import MOST_ANSWER_BYTES
from pulse_registry.store.watchdog import LowSpeedLimit
from pulse_registry.store.wrappers.retry import TOTAL_S, RetryPolicy
from tests.support.certificates import certified
from tests.support.clock import Clock
from tests.support.misbehaving_s3 import Misbehaving, Request, misbehaving
from tests.support.waiting import HANG_S, NEVER_S

Step = Callable[[Request], None]
PATIENT = LowSpeedLimit(window_s=HANG_S)
BRIEF = LowSpeedLimit(bytes_per_s=100_000, window_s=0.1)
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")


@contextmanager
def served(
    *script: Step,
    reads_bodies: bool = True,
    low_speed: LowSpeedLimit = PATIENT,
    answer_s: float = NEVER_S,
    clock: Clock | None = None,
    threads: int = 4,
    tls: SSLContext | None = None,
) -> Iterator[tuple[Misbehaving, S3Store]]:
    with misbehaving(*script, reads_bodies=reads_bodies, tls=tls) as server:
        clock = clock or Clock()
        retries = RetryPolicy(clock=clock, sleep=clock.sleep)
        place = S3Location("bucket", server.url, "us-east-1", "path")
        store = S3Store(
            place, part_bytes=5 * MIB, low_speed=low_speed, answer_s=answer_s, part_retries=retries, threads=threads
        )
        yield server, store


def error(status: int, code: str, **headers: str) -> Step:
    return lambda request: request.error(status, code, **headers)


def ok(body: bytes = b"", **headers: str) -> Step:
    return lambda request: request.answer(200, body, **headers)


# answers


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (409, "ConditionalRequestConflict", StoreUnavailable),
        (409, "OperationAborted", StoreUnavailable),
        (412, "PreconditionFailed", AlreadyExists),
        (429, "TooManyRequests", StoreUnavailable),
        (500, "InternalError", StoreUnavailable),
        (503, "SlowDown", StoreUnavailable),
        (504, "GatewayTimeout", StoreUnavailable),
        (400, "RequestTimeout", StoreUnavailable),
        (400, "BadDigest", StoreUnavailable),
        (400, "ExpiredToken", AccessDenied),
        (400, "InvalidToken", AccessDenied),
        (401, "Unauthorized", AccessDenied),
        (403, "AccessDenied", AccessDenied),
        (403, "InvalidAccessKeyId", AccessDenied),
        (403, "SignatureDoesNotMatch", AccessDenied),
        (403, "RequestTimeTooSkewed", AccessDenied),
        (404, "NoSuchBucket", InvalidArgument),
        (409, "ExistingObjectIsFile", InvalidArgument),
        (400, "InvalidRequest", InvalidArgument),
        (501, "NotImplemented", InvalidArgument),
    ],
)
def test_a_refused_create_raises_what_the_caller_can_act_on(status: int, code: str, expected: type[PulseError]) -> None:
    with served(error(status, code)) as (server, store):
        with pytest.raises(expected) as caught:
            store.put("log/1", b"data", if_absent=True)
        assert "log/1" in str(caught.value)
        assert type(caught.value) is expected
        assert len(server.seen) == 1
        assert server.seen[0].headers["If-None-Match"] == "*"


def test_an_expired_token_is_told_as_one() -> None:
    with served(error(403, "ExpiredToken")) as (_, store), pytest.raises(AccessDenied, match="expired: renew"):
        store.get("key")


@pytest.mark.slow
def test_a_clock_that_is_wrong_is_told_as_one() -> None:
    with served(error(403, "RequestTimeTooSkewed")) as (_, store), pytest.raises(AccessDenied, match="clock"):
        store.get("key")


def test_a_missing_bucket_is_no_missing_object() -> None:
    with served(error(404, "NoSuchBucket")) as (_, store):
        for call in (lambda: store.get("key"), lambda: [*store.list("")], lambda: store.delete("key")):
            with pytest.raises(InvalidArgument, match="no such bucket"):
                call()


@pytest.mark.parametrize("status", [403, 404, 500, 503])
def test_errors_without_a_body_are_told_by_their_status(status: int) -> None:
    expected = {403: AccessDenied, 404: NotFound}.get(status, StoreUnavailable)
    with served(lambda request: request.answer(status)) as (_, store):
        for call in (lambda: store.size("key"), lambda: store.get("key")):
            with pytest.raises(expected):
                call()
        if status == 404:
            assert not store.exists("key")
            store.delete("key")
        else:
            with pytest.raises(expected):
                store.exists("key")


@pytest.mark.parametrize("body", [b"<html>busy</html>", b"<Error><Code>", b"\xff\xfe", b'{"error": 1}'])
def test_an_error_that_is_no_xml_is_told_by_its_status(body: bytes) -> None:
    with served(lambda request: request.answer(502, body)) as (_, store), pytest.raises(StoreUnavailable):
        store.put("key", b"data")


@pytest.mark.parametrize("body", [b"<html>", b"not xml", b"<ListBucketResult><Contents>"])
def test_a_listing_that_is_no_xml_is_unavailable(body: bytes) -> None:
    with served(ok(body)) as (_, store), pytest.raises(StoreUnavailable):
        [*store.list("")]


def test_an_answer_that_is_no_http_is_unavailable() -> None:
    def noise(request: Request) -> None:
        request.raw(b"\x00\x01 this is not HTTP\r\n\r\n")
        request.drop()

    with served(noise) as (_, store), pytest.raises(StoreUnavailable):
        store.get("key")


def test_a_listing_that_does_not_go_on_is_unavailable() -> None:
    page = b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"
    with served(ok(page)) as (_, store), pytest.raises(StoreUnavailable, match="does not go on"):
        [*store.list("")]


# retries


def test_a_create_in_conflict_is_tried_again_and_an_error_that_stays_is_not() -> None:
    with served(error(409, "ConditionalRequestConflict"), error(503, "SlowDown"), ok()) as (server, store):
        RetryStore(store, RetryPolicy(first_pause_s=0.001, rng=random.Random(1))).put("key", b"data", if_absent=True)
        assert [request.body for request in server.seen] == [b"data"] * 3
    for status, code, kind in ((403, "AccessDenied", AccessDenied), (412, "PreconditionFailed", AlreadyExists)):
        with served(error(status, code)) as (server, store):
            with pytest.raises(kind):
                RetryStore(store, RetryPolicy(first_pause_s=0.001)).put("key", b"data", if_absent=True)
            assert len(server.seen) == 1


def test_a_create_whose_answer_was_lost_finds_its_own_object() -> None:
    taken: list[bytes] = []

    def first(request: Request) -> None:
        taken.append(request.body)
        request.drop()

    with served(first, error(412, "PreconditionFailed")) as (server, store):
        with pytest.raises(StoreUnavailable):
            store.put("key", b"mine", if_absent=True)
        assert len(server.seen) == 1  # the client below has not sent it again
        with pytest.raises(AlreadyExists):
            store.put("key", b"mine", if_absent=True)
        assert taken == [b"mine"]


def test_the_store_says_how_long_to_wait() -> None:
    pauses: list[float] = []
    with served(error(503, "SlowDown", Retry_After="7"), ok()) as (_, store):
        RetryStore(store, RetryPolicy(sleep=pauses.append, first_pause_s=0.05)).put("key", b"data")
    assert len(pauses) == 1
    assert 7.0 <= pauses[0] <= 7.5


@pytest.mark.parametrize(
    ("status", "code", "throttled"),
    [
        (503, "SlowDown", True),
        (503, "ServiceUnavailable", True),
        (429, "TooManyRequests", True),
        (400, "RequestLimitExceeded", True),
        (500, "InternalError", False),
        (409, "OperationAborted", False),
    ],
)
def test_a_store_that_is_asked_too_much_says_so_and_may_say_for_how_long_in_both_forms(
    status: int, code: str, throttled: bool
) -> None:
    in_an_hour = formatdate(time.time() + 7200.0, usegmt=True)
    with served(error(status, code, Retry_After="7"), error(status, code, Retry_After=in_an_hour)) as (_, store):
        for seconds in (7.0, 3600.0):
            with pytest.raises(StoreUnavailable) as caught:
                store.get("key")
            assert caught.value.retry_after_s == seconds
            assert caught.value.throttled is throttled


def test_no_server_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        store = S3Store(S3Location("bucket", f"http://127.0.0.1:{taken.getsockname()[1]}", "us-east-1"))
        for call in (lambda: store.get("key"), lambda: store.put("key", b""), lambda: [*store.list("")]):
            with pytest.raises(StoreUnavailable, match="could not"):
                call()


def test_a_proxy_that_is_down_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("HTTP_PROXY", f"http://user:geheim@{place}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        store = S3Store(S3Location("bucket", "http://store.example:9000", "us-east-1"))
        with pytest.raises(StoreUnavailable, match=f"no connection to the proxy {place}") as caught:
            store.get("key")
    assert "geheim" not in str(caught.value)


def test_a_server_that_says_nothing_is_given_up() -> None:
    silent: Step = lambda request: request.hold() and None  # noqa: E731
    with served(silent, answer_s=0.1) as (_, store), pytest.raises(StoreUnavailable, match="timeout"):
        store.size("key")


# bodies on their way in


def test_of_the_clients_body_only_what_it_offers_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Offered:
        def __init__(self, stream: object, size: int) -> None:
            self.__body = StreamingBody(stream, size)

        def set_socket_timeout(self, seconds: float) -> None:
            self.__body.set_socket_timeout(seconds)

        def close(self) -> None:
            self.__body.close()

    monkeypatch.setattr("botocore.endpoint.StreamingBody", Offered)
    data = bytes(range(256)) * 4096
    with served(ok(data), ok(data, Content_Range=f"bytes 0-{len(data) - 1}/{len(data)}"), ok(data)) as (_, store):
        assert store.get("key") == data
        assert store.get("key", (0, len(data))) == data


@pytest.fixture(params=["in place", "by urllib3"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How bodies are read: into the buffer where http.client can be reached, or as urllib3 gives them out."""
    if request.param == "by urllib3":
        monkeypatch.setattr(body, "response_below", lambda stream, nbytes: None)
    return request.param


@pytest.mark.parametrize("secure", [False, True])
def test_bodies_of_any_size_come_whole_by_one_connection(
    reading: str, secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, context = random.Random(5), None
    if secure:
        context, trusted = certified(tmp_path)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))
    sizes = [1, 2, 8191, 8192, 8193, 3 * MIB, *(rng.randrange(1, 2 * MIB) for _ in range(6))]
    bodies = [rng.randbytes(size) for size in sizes]

    def in_pieces(data: bytes) -> Step:
        def step(request: Request) -> None:
            request.answer(200, b"", length=len(data), Content_Range=f"bytes 0-{len(data) - 1}/{len(data)}")
            at = 0
            while at < len(data):
                nbytes = rng.choice([1, 100, 9000, MIB])
                request.raw(data[at : at + nbytes])
                at += nbytes

        return step

    with served(*map(in_pieces, bodies), tls=context) as (server, store):
        for data in bodies:
            into = bytearray(len(data))
            store.get_into("key", (0, len(data)), into)
            assert into == data
        assert len({request.connection for request in server.seen}) == 1


def test_bodies_come_in_place_with_the_urllib3_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    found, look = [], body.response_below
    monkeypatch.setattr(body, "response_below", lambda *of: found.append(look(*of)) or found[-1])
    with served(ok(b"whole"), ok(b"whole", Content_Range="bytes 0-4/5")) as (_, store):
        assert store.get("key") == b"whole"
        assert store.get("key", (0, 5)) == b"whole"
    assert len(found) == 2
    assert all(isinstance(response, http.client.HTTPResponse) for response in found), "urllib3 hides it: see ADR 6"


def test_after_an_answer_that_ends_its_connection_the_next_has_one_of_its_own(reading: str) -> None:
    with served(ok(b"whole", Connection="close"), ok(b"again")) as (server, store):
        assert store.get("key") == b"whole"
        server.seen[0].drop()
        assert store.get("key") == b"again"
        assert len({request.connection for request in server.seen}) == 2


def test_a_body_without_a_length_is_read_as_urllib3_gives_it_out() -> None:
    assert body.response_below(object(), 3) is None
    response = HTTPResponse(io.BytesIO(b"abc"), preload_content=False)
    assert body.response_below(response, 3) is None


def test_a_body_that_is_cut_is_unavailable_and_never_short(reading: str) -> None:
    def cut(request: Request) -> None:
        request.answer(200, b"x" * 1000, length=3 * MIB)
        request.drop()

    with served(cut) as (_, store), pytest.raises(StoreUnavailable):
        store.get("key")


def test_a_body_that_stalls_is_given_up(reading: str) -> None:
    def stall(request: Request) -> None:
        request.answer(200, b"x" * 1000, length=3 * MIB)
        request.hold()

    with served(stall, low_speed=BRIEF) as (_, store), pytest.raises(StoreUnavailable, match="timed out"):
        store.get("key")


def test_a_body_that_trickles_is_given_up(reading: str) -> None:
    def trickle(request: Request) -> None:
        request.answer(200, b"x", length=3 * MIB)
        while not request.hold(0.01):
            request.raw(b"x")

    with served(trickle, low_speed=BRIEF) as (_, store), pytest.raises(StoreUnavailable, match="stalled"):
        store.get("key")


def test_a_connection_that_broke_is_not_used_again(reading: str) -> None:
    def cut(request: Request) -> None:
        request.answer(200, b"x" * 1000, length=3 * MIB)
        request.drop()

    with served(cut, ok(b"whole")) as (_, store):
        with pytest.raises(StoreUnavailable):
            store.get("key")
        assert store.get("key") == b"whole"


def test_a_size_that_is_larger_than_the_reader_expects_is_corrupt_and_costs_no_memory() -> None:
    step: Step = lambda request: request.answer(200, b"x", length=1 << 60)  # noqa: E731
    with served(step) as (_, store):
        store.exists("key")  # what the client takes for itself
        tracemalloc.start()
        try:
            with pytest.raises(CorruptObject, match=f"key.* {1 << 60} bytes, and 65536 are the most"):
                store.get("key", max_bytes=65536)
            assert tracemalloc.get_traced_memory()[1] < 4 * MIB
        finally:
            tracemalloc.stop()


def test_no_more_is_read_than_the_store_said() -> None:
    with served(lambda request: request.answer(200, b"said" + bytes(MIB), length=4)) as (_, store):
        assert store.get("key", max_bytes=4) == b"said"


def test_a_size_that_no_memory_holds_is_unavailable() -> None:
    step: Step = lambda request: request.answer(200, b"x", length=1 << 60)  # noqa: E731
    with served(step) as (_, store), pytest.raises(StoreUnavailable, match="too many"):
        store.get("key", max_bytes=1 << 60)


def test_an_object_whose_size_is_not_told_is_unavailable() -> None:
    def unsaid(request: Request) -> None:
        request.raw(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + bytes(MIB))
        request.drop()

    with served(unsaid) as (_, store), pytest.raises(StoreUnavailable, match="did not say its size"):
        store.get("key", max_bytes=65536)


def part(body: bytes, said: str) -> Step:
    return lambda request: request.answer(206, body, Content_Range=said)


@pytest.mark.parametrize(
    "step",
    [
        part(b"0123", "bytes 0-3/10"),
        part(b"2345", "bytes 2-6/10"),
        part(b"234", "bytes 2-5/10"),
        part(b"2345", "rows 2-5/10"),
        part(b"2345", "bytes 2-5/*"),
        part(b"2345", ""),
        ok(b"0123456789"),
    ],
)
def test_an_answer_to_another_range_is_unavailable(step: Step) -> None:
    with served(step) as (_, store):
        with pytest.raises(StoreUnavailable, match="bytes 2 to 6"):
            store.get("key", (2, 6))
        with pytest.raises(StoreUnavailable, match="bytes 2 to 6"):
            store.get_into("key", (2, 6), bytearray(4))


def test_the_whole_object_answers_a_range_that_is_all_of_it() -> None:
    with served(ok(b"0123")) as (_, store):
        assert store.get("key", (0, 4)) == b"0123"


def test_a_range_past_the_end_is_corrupt_and_nothing_is_read() -> None:
    with served(part(b"89", "bytes 8-9/10")) as (_, store), pytest.raises(CorruptObject, match="has 10 bytes"):
        store.get("key", (8, 1 << 60))
    with served(error(416, "InvalidRange")) as (_, store), pytest.raises(CorruptObject):
        store.get("key", (11, 12))


def test_a_buffer_of_another_size_is_refused_before_anything_is_asked() -> None:
    with served(ok(b"0123")) as (server, store):
        for buffer in (bytearray(3), bytearray(5), b"0123"):
            with pytest.raises(InvalidArgument, match="buffer"):
                store.get_into("key", (0, 4), buffer)
        assert not server.seen


# bodies on their way out


def test_a_put_that_the_store_does_not_take_is_given_up() -> None:
    released: list[bool] = []
    step: Step = lambda request: released.append(request.hold())  # noqa: E731
    with served(step, reads_bodies=False, answer_s=0.1) as (_, store):
        with pytest.raises(StoreUnavailable):
            store.put("key", bytes(5 * MIB))
        assert not released, "the server still holds the connection"


class Multipart:
    """Answers an upload in parts as S3 does, but for some faults."""

    def __init__(self, faults: dict[tuple[str, int], Step]) -> None:
        self.faults = faults  # by verb and how often it came
        self.counts: dict[str, int] = {}
        self.parts: dict[int, bytes] = {}
        self.done = b""

    def __call__(self, request: Request) -> None:
        verb = request.verb
        if verb == "POST":
            verb = "begin" if request.path.endswith("?uploads") else "finish"
        self.counts[verb] = self.counts.get(verb, 0) + 1
        fault = self.faults.get((verb, self.counts[verb]))
        if verb == "PUT" and fault is None:
            number = int(request.path.split("partNumber=")[1].split("&")[0])
            self.parts[number] = request.body
        if verb == "finish" and (fault is None or fault is lost):
            self.done = b"".join(self.parts[number] for number in sorted(self.parts))
        if fault is not None:
            fault(request)
        elif verb == "begin":
            name = b"InitiateMultipartUploadResult"
            request.answer(200, b"<%s><UploadId>id</UploadId></%s>" % (name, name))
        elif verb == "finish":
            request.answer(200, b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")
        elif verb == "HEAD":
            request.answer(200 if self.done else 404, self.done)
        else:
            request.answer(204 if verb == "DELETE" else 200, ETag='"etag"')


def lost(request: Request) -> None:
    request.drop()


class Zeros(Stream):
    def __init__(self, nbytes: int, given: int | None = None) -> None:
        self.nbytes = nbytes
        self.given = nbytes if given is None else given

    def __iter__(self) -> Iterator[bytes]:
        for at in range(0, self.given, 700_001):
            yield bytes([at % 251]) * min(700_001, self.given - at)


def test_parts_that_fail_are_sent_again_and_no_others() -> None:
    answers = Multipart({("PUT", 2): error(503, "SlowDown"), ("PUT", 4): lost, ("begin", 1): error(500, "Internal")})
    data = Zeros(12 * MIB)
    with served(answers) as (_, store):
        store.put("key", data, if_absent=True)
    assert answers.done == b"".join(data)
    assert answers.counts == {"HEAD": 1, "begin": 2, "PUT": 5, "finish": 1}


class Burst(Multipart):
    """Has no place for one of the parts, or for any, for some time."""

    def __init__(self, clock: Clock, seconds: float = math.inf, part: int | None = None) -> None:
        super().__init__({})
        self.clock, self.seconds, self.part = clock, seconds, part
        self.tries: Counter[int] = Counter()

    def __call__(self, request: Request) -> None:
        number = int(request.path.split("partNumber=")[1].split("&")[0]) if request.verb == "PUT" else 0
        self.tries[number] += 1
        if number and self.part in (number, None) and self.clock.now < self.seconds:
            request.error(503, "SlowDown")
        else:
            super().__call__(request)


def test_an_upload_outlives_a_burst_of_refusals_of_one_part_and_sends_no_other_again() -> None:
    clock, data = Clock(), Zeros(18 * MIB)
    answers = Burst(clock, 25.0, part=2)
    with served(answers, clock=clock) as (_, store):
        RetryStore(store, RetryPolicy(clock=clock, sleep=clock.sleep)).put("key", data, if_absent=True)
    assert answers.done == b"".join(data)
    assert [answers.tries[number] for number in (1, 3, 4)] == [1, 1, 1]
    assert answers.tries[2] > 3
    assert answers.counts["begin"] == answers.counts["finish"] == 1


def test_an_upload_to_a_store_that_takes_no_part_any_more_is_given_up_once() -> None:
    clock = Clock()
    answers = Burst(clock)
    with served(answers, clock=clock, threads=1) as (_, store), pytest.raises(StoreUnavailable, match="gave up"):
        RetryStore(store, RetryPolicy(clock=clock, sleep=clock.sleep)).put("key", bytes(6 * MIB))
    assert clock.now == pytest.approx(TOTAL_S)
    assert answers.counts == {"begin": 1, "DELETE": 1}
    assert 3 < answers.tries[1] < 40


@pytest.mark.slow
def test_an_upload_that_fails_is_given_up() -> None:
    answers = Multipart({("PUT", count): error(403, "AccessDenied") for count in range(1, 9)})
    with served(answers) as (_, store), pytest.raises(AccessDenied):
        store.put("key", bytes(30 * MIB))
    assert answers.counts["DELETE"] == 1
    assert answers.counts["PUT"] < 6
    assert not answers.done


@pytest.mark.parametrize("given", [6 * MIB, 12 * MIB - 1, 12 * MIB + 1, 15 * MIB])
def test_a_stream_that_is_not_as_long_as_it_says_is_given_up(given: int) -> None:
    answers = Multipart({})
    with served(answers) as (_, store), pytest.raises(InvalidArgument, match="announced"):
        store.put("key", Zeros(12 * MIB, given))
    assert answers.counts["DELETE"] == 1
    assert not answers.done


def test_an_upload_whose_last_answer_was_lost_has_succeeded() -> None:
    answers = Multipart({("finish", 1): lost, ("finish", 2): error(404, "NoSuchUpload")})
    with served(answers) as (_, store):
        store.put("key", bytes(6 * MIB))
    assert len(answers.done) == 6 * MIB


def test_an_upload_that_is_gone_is_unavailable() -> None:
    answers = Multipart({("finish", 1): error(404, "NoSuchUpload")})
    with served(answers) as (_, store), pytest.raises(StoreUnavailable, match="put it again"):
        store.put("key", bytes(6 * MIB))


def test_a_large_create_of_a_key_that_is_taken_sends_nothing() -> None:
    with served(ok(b"taken")) as (server, store):
        with pytest.raises(AlreadyExists):
            store.put("key", bytes(6 * MIB), if_absent=True)
        assert [request.verb for request in server.seen] == ["HEAD"]


def test_a_completion_that_lost_the_race_is_refused() -> None:
    answers = Multipart({("finish", 1): error(412, "PreconditionFailed")})
    with served(answers) as (server, store), pytest.raises(AlreadyExists):
        store.put("key", bytes(6 * MIB), if_absent=True)
    finish = next(request for request in server.seen if request.verb == "POST" and "uploadId" in request.path)
    assert finish.headers["If-None-Match"] == "*"
    assert answers.counts["DELETE"] == 1


# answers without end


def endless(status: int, sent: list[int]) -> Step:
    """Answer with XML that goes on until the client has gone; ``sent`` holds how many bytes it was."""

    def step(request: Request) -> None:
        request.begin(status)
        sent.append(0)
        piece = b"<Error><Code>a</Code>" + b" " * 65_536
        while sent[-1] < 64 * MIB and request.raw(piece):
            sent[-1] += len(piece)

    return step


LARGE = bytes(11 * MIB)
"""The caller's, so made before what is measured."""
ENDLESS: dict[str, tuple[int, Callable[[S3Store], object]]] = {
    "a list": (200, lambda store: [*store.list("")]),
    "an error of a get": (404, lambda store: store.get("key")),
    "an error of a list": (500, lambda store: [*store.list("")]),
    "an error of a put": (412, lambda store: store.put("key", b"data", if_absent=True)),
    "the answer to a put": (200, lambda store: store.put("key", b"data")),
    "the answer to a delete": (200, lambda store: store.delete("key")),
    "an upload that begins": (200, lambda store: store.put("key", LARGE)),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_an_answer_without_end_is_read_so_far_and_no_further(what: str) -> None:
    status, call = ENDLESS[what]
    sent: list[int] = []
    with served(endless(status, sent)) as (_, store):
        tracemalloc.start()
        try:
            with pytest.raises(StoreUnavailable, match=r"none of S3's.*longer than"):
                call(store)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 3 * MOST_ANSWER_BYTES
    # What the system's buffers held is sent, too.
    assert all(nbytes < 64 * MIB for nbytes in sent)


def test_an_answer_that_trickles_is_given_up() -> None:
    def trickle(request: Request) -> None:
        request.answer(200, b"<", length=1000)
        while not request.hold(0.05):
            request.raw(b" ")

    with served(trickle) as (_, store), pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "_LOW_SPEED", BRIEF)
        with pytest.raises(StoreUnavailable, match="the answer: stalled"):
            [*store.list("")]
