"""Objects through signed requests: ranges, URLs that expire, uploads, and a bucket that never sees the token."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime

import httpx
import pytest

from pulse_registry.client.presigned import PresignedRequests
from pulse_registry.client.store import ServiceStore
from pulse_registry.client.transport import Timeouts
from pulse_registry.client.uploads import HELD_BYTES
from pulse_registry.errors import (
    AccessDenied,
    AlreadyExists,
    CorruptObject,
    InvalidArgument,
    NotFound,
    PulseError,
    StoreUnavailable,
    UnsupportedFormat,
)
from pulse_registry.format.exponent_coding import KeyframeCoding
from pulse_registry.format.keyframe import KeyframeForm
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.store import MOST_WHOLE_BYTES, Buffer, RetryStore, Stream, create
from pulse_registry.store.wrappers.prefix import PrefixStore
from pulse_registry.store.wrappers.retry import TOTAL_S, RetryPolicy
from tests.support.clock import Clock
from tests.support.partial_keyframes import PIECE, Stored
from tests.support.scripted_http import PATIENT, Asked, Reply, Script, Server, document, problem, serving
from tests.support.waiting import HANG_S

KEY = "run/objects/patch/000000000000-000000000001-0123456789abcdef0123456789abcdef.safetensors"
BELOW = KEY.removeprefix("run/")
DATA = bytes(range(256)) * 4
TOKEN = "pulse_abc_secret"


def ranged(asked: Asked, data: bytes = DATA) -> Reply:
    """Answer as a bucket does."""
    wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", asked.headers.get("Range", ""))
    if wanted is None:
        return Reply(body=data)
    first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
    if first >= len(data):
        return Reply(416, {"Content-Range": f"bytes */{len(data)}"})
    return Reply(206, {"Content-Range": f"bytes {first}-{last}/{len(data)}"}, data[first : last + 1])


class Pair:
    """A service that signs, and the bucket behind it."""

    def __init__(self, bucket: Script = ranged, life_s: float = 900.0) -> None:
        self.life_s = life_s
        self.kind = "put"
        self.part_size = 1 << 20
        self.signed = 0
        self.completed: list[Asked] = []
        self.aborted: list[Asked] = []
        self.complete: Callable[[], Reply] = lambda: Reply(201)
        self.bucket_script = bucket
        self.clock = Clock()
        self.bucket: Server
        self.service: Server
        self.store: ServiceStore

    def script(self, asked: Asked) -> Reply:
        now = datetime.now(UTC) + timedelta(days=400)  # the two machines need not agree on the time
        self.signed += 1
        if asked.path.endswith("/urls"):
            urls = {key: f"{self.bucket.url}/b/{key}?X-Amz-Signature=s{self.signed}" for key in asked.json()["keys"]}
            until = (now + timedelta(seconds=self.life_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            return document({"urls": urls, "expires_at": until}, Date=format_datetime(now))
        if asked.path.endswith("/complete"):
            self.completed.append(asked)
            return self.complete()
        if asked.method == "DELETE":
            self.aborted.append(asked)
            return Reply(204)
        request = {
            "url": f"{self.bucket.url}/b/{asked.json()['key']}?X-Amz-Signature=s{self.signed}",
            "headers": {"If-None-Match": "*", "x-amz-checksum-sha256": asked.json().get("sha256") or ""},
        }
        if asked.path.endswith("/parts"):
            return document(request | {"url": f"{request['url']}&partNumber={asked.json()['number']}"})
        if self.kind == "parts":
            return document({"kind": "parts", "upload_id": "u1", "part_size": self.part_size}, 201)
        return document({"kind": self.kind, "request": request}, 201)


@pytest.fixture
def pair() -> Iterator[Pair]:
    it = Pair()
    with serving(it.script) as it.service, serving(lambda asked: it.bucket_script(asked)) as it.bucket:
        retries = RetryPolicy(clock=it.clock, sleep=it.clock.sleep)
        it.store = ServiceStore(it.service.url, TOKEN, timeouts=PATIENT, part_retries=retries)
        yield it
        it.store.close()


@pytest.mark.parametrize("byte_range", [None, (0, 10), (100, 1024), (1023, 1024), (0, 1024)])
def test_objects_and_ranges_come_from_the_bucket(pair: Pair, byte_range: tuple[int, int] | None) -> None:
    assert pair.store.get(KEY, byte_range) == (DATA if byte_range is None else DATA[slice(*byte_range)])
    if byte_range is not None:
        buffer = bytearray(byte_range[1] - byte_range[0])
        pair.store.get_into(KEY, byte_range, buffer)
        assert buffer == DATA[slice(*byte_range)]
    assert pair.store.size(KEY) == len(DATA)
    assert pair.store.exists(KEY)


def test_the_bucket_never_sees_the_token(pair: Pair) -> None:
    pair.store.get(KEY)
    pair.bucket_script = lambda _: Reply()
    pair.store.put(KEY, b"data")
    assert all("Authorization" in asked.headers for asked in pair.service.asked)
    assert [asked.headers.get("Authorization") for asked in pair.bucket.asked] == [None, None]


def test_a_server_that_takes_no_notice_of_ranges_is_no_obstacle(pair: Pair) -> None:
    pair.bucket_script = lambda _: Reply(body=DATA)
    assert pair.store.get(KEY, (100, 300)) == DATA[100:300]
    pair.store.get_into(KEY, (100, 300), buffer := bytearray(200))
    assert buffer == DATA[100:300]
    assert pair.store.size(KEY) == len(DATA)
    with pytest.raises(CorruptObject):
        pair.store.get(KEY, (1000, 1025))


@pytest.mark.parametrize("byte_range", [(0, 1025), (1000, 1025), (1024, 1030), (5000, 5001), (2000, 2000)])
def test_a_range_past_the_end_is_a_corrupt_object(pair: Pair, byte_range: tuple[int, int]) -> None:
    with pytest.raises(CorruptObject, match="1024"):
        pair.store.get(KEY, byte_range)
    with pytest.raises(CorruptObject, match="1024"):
        pair.store.get_into(KEY, byte_range, bytearray(byte_range[1] - byte_range[0]))


ENDLESS = [bytes(1 << 20)] * 3072
"""3 GiB, of which a reader that has a bound takes little: the one mebibyte is there once."""


@pytest.mark.parametrize("length", [None, -1], ids=["said", "not said"])
@pytest.mark.parametrize("key", [KEY, "run/head", "run/log/000000000007.json", "run/log/snapshots/000000000007.json"])
def test_what_is_longer_than_the_reader_expects_costs_no_memory(pair: Pair, key: str, length: int | None) -> None:
    endless = Reply(pieces=ENDLESS, length=length)
    pair.bucket_script = lambda _: endless
    pair.service.script = lambda asked: pair.script(asked) if asked.path.endswith("/urls") else endless
    tracemalloc.start()
    try:
        with pytest.raises(CorruptObject, match="longer than 65536 bytes"):
            pair.store.get(key, max_bytes=65536)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def test_no_more_is_read_than_the_server_said(pair: Pair) -> None:
    pair.bucket_script = lambda _: Reply(pieces=ENDLESS, length=10)
    assert pair.store.get(KEY, max_bytes=10) == bytes(10)


def test_an_empty_object_is_an_object(pair: Pair) -> None:
    pair.bucket_script = lambda asked: ranged(asked, b"")
    assert pair.store.get(KEY) == b""
    assert pair.store.size(KEY) == 0
    assert pair.store.get(KEY, (0, 0)) == b""


@pytest.mark.parametrize(
    "reply",
    [
        Reply(206, {"Content-Range": "bytes 1-10/1024"}, DATA[1:11]),
        Reply(206, {"Content-Range": "bytes 0-9/1024"}, DATA[:9]),
        Reply(206, {}, DATA[:10]),
        Reply(206, {"Content-Range": "bytes 0-9/1024"}, DATA[:5], length=10),
        Reply(500),
        Reply(503, body=b"<Code>SlowDown</Code>"),
        Reply(409),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_can_be_asked_for_again(pair: Pair, reply: Reply) -> None:
    pair.bucket_script = lambda _: reply
    with pytest.raises(StoreUnavailable):
        pair.store.get(KEY, (0, 10))
    with pytest.raises(StoreUnavailable):
        pair.store.get_into(KEY, (0, 10), bytearray(10))


def test_a_bucket_that_is_silent_is_given_up(pair: Pair) -> None:
    pair.bucket_script = lambda _: Reply(body=DATA, pieces=[b"more"], pause_s=HANG_S)
    brief = PresignedRequests(Timeouts(silence_s=0.1))
    with pytest.raises(StoreUnavailable, match="no answer in time"):
        brief.get(f"{pair.bucket.url}/b/{BELOW}", KEY, None, MOST_WHOLE_BYTES)
    brief.close()


def test_an_object_that_is_not_there_is_not_found(pair: Pair) -> None:
    pair.bucket_script = lambda _: Reply(404, body=b"<Error><Code>NoSuchKey</Code></Error>")
    with pytest.raises(NotFound):
        pair.store.get(KEY)
    assert not pair.store.exists(KEY)


# -- URLs --------------------------------------------------------------------------------------------------------------


def test_one_request_gets_the_urls_of_a_whole_route(pair: Pair) -> None:
    keys = [BELOW.replace("1-", f"{number}-", 1) for number in range(2, 1502)]
    pair.store.expect("run", keys)
    pair.store.expect("run", keys)
    for key in keys[::300]:
        pair.store.get(f"run/{key}")
    assert [len(asked.json()["keys"]) for asked in pair.service.asked] == [1000, 500]


def test_a_url_that_came_along_with_a_record_is_not_asked_for(pair: Pair) -> None:
    asked_for_urls: list[Asked] = []

    def page(asked: Asked) -> Reply:
        if not asked.path.endswith("/log"):
            asked_for_urls.append(asked)
            return pair.script(asked)
        given = pair.script(Asked("POST", "/v1/runs/run/urls", {}, Message(), json.dumps({"keys": [BELOW]}).encode()))
        body = {"run": "run", "since": 7, "records": ["{}"], "urls": json.loads(given.body)}
        return document(body, Date=given.headers["Date"])

    pair.service.script = page
    assert pair.store.wait_for_record("run", 7, HANG_S)
    assert pair.store.get(KEY) == DATA
    assert asked_for_urls == []
    pair.life_s = -1.0  # an answer that many share may be old
    assert pair.store.wait_for_record("run", 7, HANG_S)
    assert pair.store.get(KEY) == DATA
    assert asked_for_urls == []


def test_threads_that_want_the_same_url_share_a_request(pair: Pair) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: pair.store.get(KEY), range(8))) == {DATA}
    assert len(pair.service.asked) == 1


def test_urls_are_not_used_to_the_end_of_their_life(pair: Pair) -> None:
    pair.life_s = -1.0
    pair.store.get(KEY)
    pair.store.get(KEY)
    assert len(pair.service.asked) == 2


@pytest.mark.parametrize("date", ["Fri, 31 Dec 9999 23:59:59 -2359", f"Mon, 01 Jan 2020 00:00:00 +{'9' * 30}", "soon"])
def test_a_service_whose_date_is_none_is_taken_to_have_this_machines(pair: Pair, date: str) -> None:
    honest = pair.script

    def script(asked: Asked) -> Reply:
        answer = honest(asked)
        answer.headers["Date"] = date
        return answer

    pair.service.script = script
    assert pair.store.get(KEY) == DATA


def test_an_expired_url_is_asked_for_anew_once(pair: Pair) -> None:
    pair.store.expect("run", [BELOW])
    pair.bucket_script = lambda asked: Reply(403) if asked.query["X-Amz-Signature"] == ["s1"] else ranged(asked)
    pair.store.get_into(KEY, (0, 1024), buffer := bytearray(1024))
    assert pair.store.get(KEY) == DATA == buffer
    assert len(pair.service.asked) == 2


@pytest.mark.parametrize("reply", [Reply(403), Reply(401), Reply(400, body=b"<Code>ExpiredToken</Code>")])
def test_a_bucket_that_refuses_every_url_denies_access(pair: Pair, reply: Reply) -> None:
    pair.bucket_script = lambda _: reply
    with pytest.raises(AccessDenied) as caught:
        pair.store.get(KEY)
    assert len(pair.bucket.asked) == 2
    assert "Signature" not in str(caught.value)


def test_signatures_are_in_no_message_and_no_log(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    pair.store.get(KEY)
    pair.bucket_script = lambda _: Reply(400, body=b"<Code>Odd</Code><StringToSign>Signature=s1</StringToSign>")
    with pytest.raises(InvalidArgument, match="Odd") as caught:
        pair.store.get(KEY)
    assert BELOW in caplog.text
    assert "Signature" not in caplog.text + str(caught.value)


def test_the_applications_own_requests_are_logged_as_they_were(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "httpx")
    with httpx.Client(timeout=HANG_S) as mine:
        pair.store.get(KEY)
        mine.get(f"{pair.bucket.url}/of-the-application?page=2")
    assert f"HTTP Request: GET {pair.bucket.url}/b/{BELOW} " in caplog.text
    assert f"HTTP Request: GET {pair.bucket.url}/of-the-application?page=2 " in caplog.text
    for name in ("httpx", "httpcore"):
        assert logging.getLogger(name).filters == []
    assert pair.bucket.asked[0].query == {"X-Amz-Signature": ["s1"]}


def test_a_url_that_is_longer_than_any_is_refused(pair: Pair) -> None:
    script = pair.script
    long = "https://bucket/" + "x" * (1 << 20)
    pair.service.script = lambda asked: document(
        {"urls": dict.fromkeys(asked.json()["keys"], long), "expires_at": None}
    )
    with pytest.raises(UnsupportedFormat, match="no URL for"):
        pair.store.get(KEY)
    pair.service.script = script
    assert pair.store.get(KEY) == DATA


def test_a_url_that_is_no_url_is_refused(pair: Pair) -> None:
    pair.service.script = lambda asked: document({"urls": {BELOW: "//elsewhere/v1/x"}, "expires_at": None})
    with pytest.raises(UnsupportedFormat):
        pair.store.get(KEY)


# -- uploads -----------------------------------------------------------------------------------------------------------


class Letters(Stream):
    """A stream of `count` MiB, each of one letter."""

    def __init__(self, count: int) -> None:
        self.nbytes = count << 20
        self.begun = 0

    def __iter__(self) -> Iterator[Buffer]:
        self.begun += 1
        for number in range(self.nbytes >> 20):
            yield bytes([65 + number % 26]) * (1 << 20)


@pytest.mark.parametrize("data", [b"", b"abc", [b"a", bytearray(b"b"), memoryview(b"c")], Letters(3)])
def test_an_object_goes_to_the_bucket_as_it_was_announced(pair: Pair, data: object) -> None:
    whole = data if isinstance(data, bytes) else b"".join(data)  # type: ignore[call-overload]
    pair.bucket_script = lambda _: Reply()
    pair.store.put(KEY, data)  # type: ignore[arg-type]
    announced, sent = pair.service.asked[0].json(), pair.bucket.asked[0]
    assert announced == {"key": BELOW, "size": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}
    assert sent.body == whole
    assert sent.headers["Content-Length"] == str(len(whole))
    assert sent.headers["If-None-Match"] == "*"
    assert sent.headers["x-amz-checksum-sha256"] == announced["sha256"]
    assert sent.headers.get("Transfer-Encoding") is None


def test_a_long_stream_goes_in_parts_and_is_made_once(pair: Pair) -> None:
    pair.kind, pair.part_size = "parts", 5 << 20
    pair.bucket_script = lambda asked: Reply(headers={"ETag": f'"{asked.query["partNumber"][0]}"'})
    stream = Letters((HELD_BYTES >> 20) + 3)
    pair.store.put(KEY, stream)
    parts = {int(asked.query["partNumber"][0]): asked.body for asked in pair.bucket.asked}
    assert b"".join(parts[number] for number in sorted(parts)) == b"".join(Letters(67))
    assert [len(parts[number]) for number in sorted(parts)] == [5 << 20] * 13 + [2 << 20]
    (completed,) = pair.completed
    assert completed.json()["parts"] == [
        {"number": number, "etag": f'"{number}"', "sha256": hashlib.sha256(parts[number]).hexdigest()}
        for number in sorted(parts)
    ]
    assert "sha256" not in pair.service.asked[0].json()
    assert stream.begun == 1
    assert pair.aborted == []


def test_a_part_that_fails_is_tried_again_alone_with_a_new_signature(pair: Pair) -> None:
    pair.kind = "parts"
    failures = {"1": Reply(500), "3": Reply(403), "4": Reply(400, body=b"<Code>BadDigest</Code>")}
    lock = threading.Lock()

    def bucket(asked: Asked) -> Reply:
        with lock:
            return failures.pop(asked.query["partNumber"][0], Reply(headers={"ETag": "e"}))

    pair.bucket_script = bucket
    pair.store.put(KEY, b"x" * (5 << 20))
    numbers = sorted(asked.query["partNumber"][0] for asked in pair.bucket.asked)
    assert numbers == ["1", "1", "2", "3", "3", "4", "4", "5"]
    assert len(pair.completed) == 1


def test_an_upload_outlives_a_burst_of_refusals_of_one_part_and_sends_no_other_again(pair: Pair) -> None:
    pair.kind = "parts"

    def bucket(asked: Asked) -> Reply:
        busy = asked.query["partNumber"] == ["2"] and pair.clock.now < 25.0
        return Reply(503, body=b"<Code>SlowDown</Code>") if busy else Reply(headers={"ETag": "e"})

    pair.bucket_script = bucket
    RetryStore(pair.store, RetryPolicy(clock=pair.clock, sleep=pair.clock.sleep)).put(KEY, b"x" * (4 << 20))
    sent = Counter(asked.query["partNumber"][0] for asked in pair.bucket.asked)
    assert sent.pop("2") > 3
    assert sent == {"1": 1, "3": 1, "4": 1}
    assert (len(pair.completed), pair.aborted) == (1, [])


@pytest.mark.parametrize("what", ["part", "completion"])
def test_an_upload_to_a_bucket_that_is_away_for_good_is_given_up_once(pair: Pair, what: str) -> None:
    pair.kind = "parts"
    pair.bucket_script = lambda _: Reply(503) if what == "part" else Reply(headers={"ETag": "e"})
    pair.complete = lambda: Reply(503)
    with pytest.raises(StoreUnavailable, match="gave up"):
        RetryStore(pair.store, RetryPolicy(clock=pair.clock, sleep=pair.clock.sleep)).put(KEY, b"x" * (1 << 20))
    assert pair.clock.now == pytest.approx(TOTAL_S)
    assert len(pair.aborted) == 1
    assert len(pair.bucket.asked) + len(pair.completed) < 40


def test_what_a_bucket_asks_for_is_heeded(pair: Pair) -> None:
    pair.bucket_script = lambda _: Reply(503, {"Retry-After": "7"}, b"<Code>SlowDown</Code>")
    for call in (lambda: pair.store.get(KEY), lambda: pair.store.put(KEY, b"data")):
        with pytest.raises(StoreUnavailable) as caught:
            call()
        assert (caught.value.retry_after_s, caught.value.throttled) == (7.0, True)


def test_an_upload_that_can_not_go_on_is_given_up(pair: Pair) -> None:
    pair.kind = "parts"
    pair.bucket_script = lambda _: Reply(400, body=b"<Code>EntityTooSmall</Code>")
    with pytest.raises(InvalidArgument, match="EntityTooSmall"):
        pair.store.put(KEY, b"x" * (3 << 20))
    (aborted,) = pair.aborted
    assert aborted.path == "/v1/runs/run/uploads/u1"
    assert aborted.query == {"key": [BELOW]}
    assert pair.completed == []


@pytest.mark.parametrize("second", [problem("AlreadyExists", 409), problem("InvalidArgument", 400)])
@pytest.mark.parametrize("stored", [b"x" * (2 << 20), b"x"], ids=["same size", "shorter"])
def test_a_completion_whose_answer_was_lost_is_told_by_what_is_there(pair: Pair, second: Reply, stored: bytes) -> None:
    pair.kind = "parts"
    replies = iter([Reply(503), second])
    pair.complete = lambda: next(replies)
    pair.bucket_script = lambda asked: Reply(headers={"ETag": "e"}) if asked.method == "PUT" else ranged(asked, stored)
    data = b"x" * (2 << 20)
    if len(stored) == len(data):
        create(pair.store, KEY, data)
    else:
        with pytest.raises(AlreadyExists):
            create(pair.store, KEY, data)


def test_a_key_that_is_taken_is_a_clash_and_by_as_many_bytes_a_lost_answer_of_who_owns_the_key(pair: Pair) -> None:
    pair.bucket_script = lambda asked: Reply(412) if asked.method == "PUT" else ranged(asked)
    for if_absent in (False, True):
        with pytest.raises(AlreadyExists):
            pair.store.put(KEY, DATA, if_absent=if_absent)
    create(pair.store, KEY, DATA)
    with pytest.raises(AlreadyExists):
        create(pair.store, KEY, DATA[:-1])


def test_an_upload_whose_signature_expired_is_announced_anew_once(pair: Pair) -> None:
    pair.bucket_script = lambda asked: Reply(403 if asked.query["X-Amz-Signature"] == ["s1"] else 200)
    pair.store.put(KEY, b"data")
    assert [asked.body for asked in pair.bucket.asked] == [b"data", b"data"]
    pair.bucket_script = lambda _: Reply(403)
    with pytest.raises(AccessDenied):
        pair.store.put(KEY, b"data")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (409, b"<Code>ConditionalRequestConflict</Code>", StoreUnavailable),
        (503, b"", StoreUnavailable),
        (400, b"<Code>XAmzContentChecksumMismatch</Code>", StoreUnavailable),
        (400, b"<Code>EntityTooLarge</Code>", InvalidArgument),
    ],
)
def test_what_a_bucket_answers_to_a_put_says_whether_to_try_again(
    pair: Pair, status: int, body: bytes, kind: type[PulseError]
) -> None:
    pair.bucket_script = lambda _: Reply(status, body=body)
    with pytest.raises(kind):
        pair.store.put(KEY, b"data")


def test_a_store_that_can_not_sign_takes_objects_through_the_service_with_the_token(pair: Pair) -> None:
    stored = io.BytesIO()

    def service(asked: Asked) -> Reply:
        if asked.path.endswith("/uploads"):
            request = {"url": f"/v1/runs/run/{BELOW}", "headers": {"X-Own": "1"}}
            return document({"kind": "direct", "request": request}, 201)
        if asked.path.endswith("/urls"):
            return document({"urls": {BELOW: f"/v1/runs/run/{BELOW}"}, "expires_at": None})
        assert asked.headers["Authorization"] == f"Bearer {TOKEN}"
        if asked.method == "PUT":
            assert asked.headers["X-Own"] == "1"
            stored.write(asked.body)
            return Reply(201)
        return ranged(asked, stored.getvalue())

    pair.service.script = service
    pair.store.put(KEY, DATA)
    assert pair.store.get(KEY) == DATA
    assert pair.store.get(KEY, (5, 700)) == DATA[5:700]
    assert pair.store.size(KEY) == len(DATA)
    with pytest.raises(CorruptObject):
        pair.store.get(KEY, (0, 2000))
    assert pair.bucket.asked == []


def test_a_direct_upload_to_another_server_is_refused(pair: Pair) -> None:
    pair.kind = "direct"
    with pytest.raises(UnsupportedFormat):
        pair.store.put(KEY, b"data")
    assert pair.bucket.asked == []


@pytest.mark.parametrize("coding", ["raw", "exponents"])
def test_a_keyframe_in_part_asks_for_a_url_an_object_and_the_bucket_for_its_pieces_alone(
    pair: Pair, coding: KeyframeCoding
) -> None:
    stored = Stored([("F32", (3000,)), ("BF16", (9000,)), ("U8", (9000,))], KeyframeForm(coding, 10_000, PIECE))
    pair.bucket_script = lambda asked: ranged(asked, stored.store.objects[asked.path.partition("/b/")[2]])
    masks = stored.masks((1, 100, 200), (1, 6000, 6001), (2, 0, 1))
    wanted = [(stored.ref.index.key, (0, stored.ref.index.size)), *stored.expected(masks)]
    with ThreadPoolExecutor(4) as pool:
        stored.fetch(masks, ParallelMap(pool), store=PrefixStore(pair.store, "run"))
    found = [
        (asked.path.partition("/b/")[2], (int(first), int(last) + 1))
        for asked in pair.bucket.asked
        for first, last in [asked.headers["Range"].removeprefix("bytes=").split("-")]
    ]
    assert sorted(found) == sorted(wanted)
    named = Counter(key for asked in pair.service.asked for key in asked.json()["keys"])
    assert named == dict.fromkeys({key for key, _ in wanted}, 1)
