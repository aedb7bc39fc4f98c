"""What is too much, too long, too slow or damaged is refused before a route sees it, with a problem document."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI, Request
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry import Registry
from pulse_registry.client.problems import TYPE_PREFIX
from pulse_registry.errors import InvalidArgument
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.store import MemoryStore
from pulse_registry.testing import CountingStore
from pulse_server import create_app
from pulse_server.settings import Settings
from pulse_server.tokens import TokenSet, new_token
from pulse_server.transport.limits import Limits
from pulse_server.transport.rate import RateLimit
from tests.unit.server.calling import calling
from tests.unit.server.edges import NOW, Clock, bearer, client_of, one_token, small_app

Ask = Callable[[httpx.AsyncClient], Awaitable[None]]


class Service:
    """The small app with some limits, a token that may do all, and a clock."""

    def __init__(self, **limits: Any) -> None:
        self.token, tokens = one_token()
        self.clock = Clock()
        self.app: FastAPI = small_app(Settings.read(root="memory://x", tokens=tokens, **limits), self.clock)

    def run(self, ask: Ask, **client: Any) -> None:
        async def main() -> None:
            async with client_of(self.app, headers=bearer(self.token), **client) as caller:
                await ask(caller)

        asyncio.run(main())


def digest(body: bytes) -> dict[str, str]:
    return {"content-digest": f"sha-256=:{b64encode(hashlib.sha256(body).digest()).decode()}:"}


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def check_problem(answer: httpx.Response, status: int, kind: str) -> None:
    assert answer.status_code == status
    assert answer.json()["type"] == TYPE_PREFIX + kind


def test_a_caller_over_its_rate_is_told_when_to_come_again() -> None:
    service = Service(rate_per_s=2, rate_burst=3)

    async def ask(client: httpx.AsyncClient) -> None:
        for _ in range(3):
            assert (await client.get("/v1/runs/a")).status_code == 200
        refused = await client.get("/v1/runs/a")
        check_problem(refused, 429, "TooManyRequests")
        assert refused.headers["content-type"] == "application/problem+json"
        assert int(refused.headers["retry-after"]) >= 1
        service.clock.seconds += int(refused.headers["retry-after"])
        assert (await client.get("/v1/runs/a")).status_code == 200

    service.run(ask)


def test_one_tokens_rate_is_not_another_ones() -> None:
    service = Service(rate_per_s=1, rate_burst=1, anonymous_per_s=1, anonymous_burst=1)

    async def ask(client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1/runs/a")).status_code == 200
        assert (await client.get("/v1/runs/a")).status_code == 429
        nobody = {"authorization": "Bearer wrong"}
        assert (await client.get("/v1/runs/a", headers=nobody)).status_code == 401
        assert (await client.get("/v1/runs/a", headers=nobody)).status_code == 429

    service.run(ask)


def test_all_addresses_of_a_subscribers_network_are_one_caller() -> None:
    _, tokens = one_token()
    app = small_app(Settings.read(root="memory://x", tokens=tokens, anonymous_per_s=1, anonymous_burst=1))

    async def main() -> None:
        for address, status in (
            ("2001:db8::1", 401),
            ("2001:db8::ffff:2", 429),
            ("2001:db8:0:1::1", 401),
            ("::ffff:192.0.2.1", 401),
            ("192.0.2.1", 429),
            ("192.0.2.2", 401),
        ):
            transport = httpx.ASGITransport(app, client=(address, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
                assert (await client.get("/v1/runs/a")).status_code == status, address

    asyncio.run(main())


def test_health_checks_have_no_limit() -> None:
    service = Service(anonymous_per_s=1, anonymous_burst=1)

    async def ask(client: httpx.AsyncClient) -> None:
        for _ in range(10):
            assert (await client.get("/healthz", headers={"authorization": ""})).status_code == 200

    service.run(ask)


def test_the_page_s_files_are_no_requests_without_a_token_and_have_a_bound_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pulse_server.transport.limits._PAGE_BURST", 110)
    service = Service(anonymous_per_s=1, anonymous_burst=1)

    @service.app.get("/")
    @service.app.get("/assets/{name}")
    async def asset() -> None: ...

    async def ask(client: httpx.AsyncClient) -> None:
        nobody = {"authorization": ""}
        for _ in range(50):  # people behind one address
            assert (await client.get("/", headers=nobody)).status_code == 200
            assert (await client.get("/assets/app.js", headers=nobody)).status_code == 200
        assert (await client.get("/v1/runs/a", headers=nobody)).status_code == 401
        check_problem(await client.get("/v1/runs/a", headers=nobody), 429, "TooManyRequests")
        check_problem(await client.post("/assets/app.js", headers=nobody), 429, "TooManyRequests")
        statuses = {(await client.get("/assets/app.js", headers=nobody)).status_code for _ in range(11)}
        assert statuses == {200, 429}

    service.run(ask)


def test_only_so_many_requests_of_a_token_are_under_way() -> None:
    service = Service(max_pending=2)
    release, entered = asyncio.Event(), asyncio.Semaphore(0)

    @service.app.get("/v1/wait")
    async def wait() -> None:
        entered.release()
        await release.wait()

    async def ask(client: httpx.AsyncClient) -> None:
        parked = [asyncio.create_task(client.get("/v1/wait")) for _ in range(2)]
        await entered.acquire()
        await entered.acquire()
        check_problem(await client.get("/v1/runs/a"), 429, "TooManyRequests")
        release.set()
        assert [answer.status_code for answer in await asyncio.gather(*parked)] == [200, 200]
        assert (await client.get("/v1/runs/a")).status_code == 200

    service.run(ask)


def test_of_very_many_requests_under_way_each_token_has_its_part() -> None:
    made = [new_token(f"t{number}", "read", ("*",), now=NOW) for number in range(10)]
    tokens = TokenSet(tokens=tuple(entry for _, entry in made))
    app = small_app(Settings.read(root="memory://x", tokens=tokens, max_pending=5))
    release, entered = asyncio.Event(), asyncio.Semaphore(0)

    @app.get("/v1/wait")
    async def wait() -> None:
        entered.release()
        await release.wait()

    async def main() -> None:
        async with client_of(app) as client:
            parked = []
            for token, _ in made[:4]:
                for _ in range(5):
                    parked.append(asyncio.create_task(client.get("/v1/wait", headers=bearer(token))))
                    await entered.acquire()
            greedy, newcomer = made[0][0], made[9][0]
            assert (await client.get("/v1/runs/a", headers=bearer(greedy))).status_code == 429
            for _ in range(3):
                parked.append(asyncio.create_task(client.get("/v1/wait", headers=bearer(newcomer))))
                await entered.acquire()
            assert (await client.get("/v1/runs/a", headers=bearer(newcomer))).status_code == 200
            release.set()
            assert {answer.status_code for answer in await asyncio.gather(*parked)} == {200}

    asyncio.run(main())


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/runs/a/log"), ("PUT", "/v1/runs/a/objects/patch/x")], ids=["body", "object"]
)
def test_a_body_that_is_too_long_is_refused_and_one_that_fits_is_not(method: str, path: str, chunked: bool) -> None:
    service = Service(max_body_bytes=10, max_object_bytes=10)

    async def ask(client: httpx.AsyncClient) -> None:
        for size, status in ((10, 201), (11, 413)):
            content = pieces(b"x" * 6, b"x" * (size - 6)) if chunked else b"x" * size
            answer = await client.request(method, path, content=content)
            assert answer.status_code == status
        check_problem(answer, 413, "InvalidRequest")

    service.run(ask)
    assert service.app.state.seen == [b"x" * 10]


def test_a_long_body_is_refused_by_its_announcement_alone() -> None:
    service = Service(max_body_bytes=10)
    asked = False

    async def never() -> AsyncIterator[bytes]:
        nonlocal asked
        asked = True
        yield b"x" * 11

    async def ask(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/runs/a/log", content=never(), headers={"content-length": "11"})
        check_problem(answer, 413, "InvalidRequest")

    service.run(ask)
    assert not asked


def test_the_body_of_a_stranger_is_not_read() -> None:
    service = Service()
    asked = False

    async def never() -> AsyncIterator[bytes]:
        nonlocal asked
        asked = True
        yield b"x"

    async def ask(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/runs/a/log", content=never(), headers={"authorization": "Bearer wrong"})
        check_problem(answer, 401, "Unauthenticated")

    service.run(ask)
    assert not asked


def test_a_body_that_its_route_refuses_is_not_read() -> None:
    made = [new_token(scope, scope, ("a",), now=NOW) for scope in ("read", "publish")]
    tokens = TokenSet(tokens=tuple(entry for _, entry in made))
    (read, _), (publish, _) = made
    app = create_app(Settings.read(root="memory://unused", tokens=tokens), MemoryStore(uuid.uuid4().hex))
    asked = False

    async def never() -> AsyncIterator[bytes]:
        nonlocal asked
        asked = True
        yield b"x"

    async def main() -> None:
        async with client_of(app) as client:
            for token, method, path, status in (
                (read, "POST", "/v1/runs/a/log", 403),
                (publish, "POST", "/v1/runs/b/log", 403),
                (publish, "PUT", f"/v1/runs/b/layouts/{'0' * 64}", 403),
                (read, "PUT", "/v1/runs/a/objects/patch/x", 403),
                (publish, "POST", "/v1/runs/_upper/log", 400),
                (publish, "DELETE", "/v1/runs/b/leases/me", 403),
            ):
                answer = await client.request(method, path, content=never(), headers=bearer(token))
                assert (answer.status_code, asked) == (status, False), path

    asyncio.run(main())


def test_bodies_that_stall_take_no_room_from_another_token() -> None:
    names = ("slow", "slow-2", "trainer")
    made = [new_token(name, "publish", ("*",), now=NOW) for name in names]
    (slow, _), (other, _), (trainer, _) = made
    tokens = TokenSet(tokens=tuple(entry for _, entry in made))
    limits = Settings.read(root="memory://x", tokens=tokens, max_buffered_bytes=800, max_body_bytes=100)
    app = small_app(limits)
    stalled, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"x" * 90
        stalled.release()
        await go_on.wait()
        yield b"x" * 10

    async def main() -> None:
        async with client_of(app) as client:

            async def send(token: str, run: str, body: Any) -> int:
                path = f"/v1/runs/{run}/log"
                status = (await client.post(path, content=body, headers=bearer(token))).status_code
                stalled.release()
                return status

            attack = []
            for number in range(64):
                attack.append(asyncio.create_task(send((slow, other)[number % 2], f"r{number % 7}", slowly())))
                await stalled.acquire()
            assert [await send(trainer, "b", b"x" * 100) for _ in range(10)] == [201] * 10
            assert await send(slow, "b", b"x" * 9) == 201  # small, and so is nothing that others must make room for
            go_on.set()
            statuses = [*await asyncio.gather(*attack)]
            assert set(statuses) == {201, 429}
            assert statuses.count(429) > 50

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/v1/runs/a/log", "/v1/runs/a/objects/patch/x"])
def test_a_body_that_does_not_come_is_not_waited_for(path: str) -> None:
    service = Service(body_seconds=0.05)

    async def stuck() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    async def ask(client: httpx.AsyncClient) -> None:
        method = "PUT" if "objects" in path else "POST"
        check_problem(await client.request(method, path, content=stuck()), 408, "SlowRequest")

    service.run(ask)
    assert service.app.state.seen == []


def test_a_body_that_trickles_is_not_waited_for_though_each_piece_comes_in_time() -> None:
    service = Service(body_seconds=60)

    async def trickle(count: int, size: int) -> AsyncIterator[bytes]:
        for _ in range(count):
            service.clock.seconds += 4
            yield b"x" * size

    async def ask(client: httpx.AsyncClient) -> None:
        path = "/v1/runs/a/log"
        check_problem(await client.post(path, content=trickle(5, 1000)), 408, "SlowRequest")
        assert (await client.post(path, content=trickle(3, 1000))).status_code == 201
        assert (await client.post(path, content=trickle(40, 200_000))).status_code == 201

    service.run(ask)
    assert [*map(len, service.app.state.seen)] == [3000, 8_000_000]


def test_an_object_that_trickles_is_not_waited_for_though_each_piece_comes_in_time() -> None:
    service = Service(body_seconds=60)

    async def trickle(pieces: int) -> AsyncIterator[bytes]:
        for _ in range(pieces):
            service.clock.seconds += 30
            yield b"x"

    async def slow(megabytes: int) -> AsyncIterator[bytes]:
        for _ in range(megabytes):
            service.clock.seconds += 20
            yield b"x" * (1 << 20)

    async def ask(client: httpx.AsyncClient) -> None:
        path = "/v1/runs/a/objects/patch/x"
        check_problem(await client.put(path, content=trickle(3)), 408, "SlowRequest")
        assert (await client.put(path, content=slow(20))).status_code == 201

    service.run(ask)
    assert [*map(len, service.app.state.seen)] == [20 << 20]


def test_what_the_service_does_between_two_pieces_is_not_the_senders_time() -> None:
    service = Service(body_seconds=60)

    @service.app.put("/v1/runs/{run}/objects/slowly/{path:path}")
    async def busy(request: Request) -> None:
        async for _ in request.stream():
            service.clock.seconds += 100

    service.app.router.routes.insert(0, service.app.router.routes.pop())

    async def ask(client: httpx.AsyncClient) -> None:
        answer = await client.put("/v1/runs/a/objects/slowly/x", content=pieces(b"x", b"y", b"z"))
        assert answer.status_code == 200

    service.run(ask)


@pytest.mark.parametrize("path", ["/v1/runs/a/log", "/v1/runs/a/objects/patch/x"])
def test_a_body_must_hash_to_its_digest(path: str) -> None:
    service = Service()
    method = "PUT" if "objects" in path else "POST"

    async def ask(client: httpx.AsyncClient) -> None:
        good = await client.request(method, path, content=pieces(b"ab", b"c"), headers=digest(b"abc"))
        assert good.status_code == 201
        bad = await client.request(method, path, content=pieces(b"ab", b"d"), headers=digest(b"abc"))
        check_problem(bad, 400, "DamagedRequest")
        short = await client.request(method, path, content=pieces(b"ab"), headers=digest(b"abc"))
        check_problem(short, 400, "DamagedRequest")

    service.run(ask)
    assert service.app.state.seen == [b"abc"]


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("sha-512=:AAAA:", 201),  # not known here: passed over, as the RFC says
        ("md5=:AAAA:, {good}", 201),
        ("{good};q=1", 201),
        ("{bad}", 400),
        ("sha-512=:AAAA:, {bad}", 400),
        ("sha-256=AAAA", 400),
        ("sha-256=:AAAA:", 400),
        ("sha-256=:%%%%:", 400),
        ("sha-256", 400),
        ("", 201),
    ],
)
def test_the_digests_header_is_read_as_rfc_9530_has_it(header: str, status: int) -> None:
    service = Service()
    value = header.format(good=digest(b"abc")["content-digest"], bad=digest(b"abd")["content-digest"])

    async def ask(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/runs/a/log", content=b"abc", headers={"content-digest": value})
        assert answer.status_code == status

    service.run(ask)


def test_an_object_that_is_damaged_on_its_way_is_not_stored() -> None:
    store = CountingStore(MemoryStore(uuid.uuid4().hex))
    with Registry(store, "math", Options(compute=ComputeOptions(backend="reference"))) as registry:
        registry.push(0, {"w": np.zeros((4, 25), np.float32)})
    path = f"objects/patch/{0:012d}-{1:012d}-{'a' * 32}.safetensors"
    with calling(create_app(Settings.read(root="memory://unused", insecure_open=True), store)) as call:
        for body, status in ((b"abd", 400), (b"abc", 201)):
            headers = {"content-length": "3", **digest(b"abc")}
            answer = call("PUT", f"/v1/runs/math/{path}", headers=headers, body=body)
            assert answer.status == status
            assert store.exists(f"math/{path}") == (status == 201)
    assert store.get(f"math/{path}") == b"abc"


def test_a_client_that_goes_away_in_the_middle_of_its_body_has_done_nothing() -> None:
    service = Service()
    reached, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope)

    async def main() -> None:
        messages = [{"type": "http.request", "body": b"x", "more_body": True}, {"type": "http.disconnect"}]

        async def receive() -> Any:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/runs/a/log",
            "client": ("127.0.0.1", 1),
            "headers": [(b"authorization", f"Bearer {service.token}".encode())],
            "app": service.app,
        }
        await Limits(app, Settings.read(root="x", insecure_open=True))(scope, receive, send)

    asyncio.run(main())
    assert (reached, sent) == ([], [])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3)), max_size=60), st.integers(1, 5))
def test_nobody_gets_more_than_the_burst_and_the_rate_allow(calls: list[tuple[str, float]], burst: int) -> None:
    clock = Clock()
    limit = RateLimit(2, burst, clock=clock.monotonic)
    began, passed = clock.seconds, {"a": 0, "b": 0}
    for caller, pause in calls:
        clock.seconds += pause
        wait_s = limit.take(caller)
        passed[caller] += wait_s == 0
        assert passed[caller] <= burst + (clock.seconds - began) * 2 + 1e-6
        if wait_s:
            assert 0 < wait_s <= 0.5 + 1e-9
            clock.seconds += wait_s + 1e-6
            assert limit.take(caller) == 0
            passed[caller] += 1


def test_callers_are_forgotten_in_the_order_of_their_silence() -> None:
    clock = Clock()
    limit = RateLimit(1, 1, clock=clock.monotonic, max_callers=2)
    assert [limit.take(caller) == 0 for caller in "aabc"] == [True, False, True, True]
    assert limit.take("c") > 0  # known still
    assert limit.take("a") == 0  # forgotten


def test_a_rate_of_zero_is_no_limit() -> None:
    limit = RateLimit(0, 1, clock=Clock().monotonic)
    assert not any(limit.take("a") for _ in range(100))
    with pytest.raises(InvalidArgument):
        RateLimit(1, 0, clock=Clock().monotonic)
