"""``pulse serve`` starts where it should, says where, logs nothing secret, and stops without dropping what it took."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

import pulse_registry
from pulse_registry import Registry
from pulse_registry.cli import main
from pulse_registry.format.keys import record_key
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.store import MemoryStore
from pulse_server.command import is_loopback
from tests.support.servers import S3Server
from tests.support.service import Served, pulse_serve
from tests.support.waiting import HANG_S, NEVER_S
from tests.unit.server.edges import bearer

WAITERS = 200
OPEN = ("--insecure-open",)


def push(root: str, run: str) -> None:
    with pulse_registry.open(root, run=run, compute=pulse_registry.ComputeOptions(backend="reference")) as registry:
        registry.push(0, {"w": np.zeros((4, 25), np.float32)})


def first_record(run: str) -> bytes:
    """Return the sealed record with which a writer begins a run."""
    store = MemoryStore(uuid.uuid4().hex)
    with Registry(store, run, Options(compute=ComputeOptions(backend="reference"))) as registry:
        registry.push(0, {"w": np.zeros((4, 25), np.float32)})
    return store.get(f"{run}/{record_key(0)}")


def exchange(served: Served, request: bytes) -> bytes:
    """Send bytes as they are, and return what comes back until the connection ends."""
    with socket.create_connection(served.address, timeout=HANG_S) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
        return answer


@pytest.mark.slow
def test_it_says_where_it_is_and_answers_there(tmp_path: Path) -> None:
    push(str(tmp_path / "root"), "math")
    with pulse_serve(str(tmp_path / "root"), tmp_path, *OPEN) as served:
        assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d+", served.url)
        assert httpx.get(f"{served.url}/healthz", timeout=HANG_S).json() == {"status": "ok"}
        assert httpx.get(f"{served.url}/v1/runs/math/versions/latest", timeout=HANG_S).json()["version"] == 0
        assert "pulse_store_calls_total" in httpx.get(f"{served.url}/metrics", timeout=HANG_S).text
        assert served.stop(signal.SIGINT) == 0


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service without tokens and with short heads, which tests share that leave it running."""
    folder = tmp_path_factory.mktemp("open")
    with pulse_serve(str(folder), folder, *OPEN, environment={"PULSE_MAX_HEADER_BYTES": "2048"}) as served:
        yield served


@pytest.mark.slow
def test_tricks_and_over_long_heads_are_refused_on_the_wire_too(open_service: Served) -> None:
    host = b"host: localhost\r\nconnection: close\r\n"

    def status(line: bytes, headers: bytes = b"") -> int:
        return int(exchange(open_service, b"GET " + line + b" HTTP/1.1\r\n" + host + headers + b"\r\n").split()[1])

    assert status(b"/healthz") == 200
    assert status(b"/v1/runs/../../etc/passwd") == 404
    assert status(b"/v1/runs/%2e%2e") == 400
    assert status(b"/healthz", b"x: " + b"a" * 1_000 + b"\r\n") == 200
    assert status(b"/healthz", b"x: " + b"a" * 3_000 + b"\r\n") == 431
    assert status(b"/healthz?" + b"a" * 3_000) == 431
    unending = exchange(open_service, b"GET /healthz HTTP/1.1\r\nx: " + b"a" * 3_000)
    assert unending.startswith(b"HTTP/1.1 431")


@pytest.mark.slow
def test_an_open_service_takes_no_name_of_another_site(open_service: Served) -> None:
    for name, status in {"rebound.example": 400, "localhost:1": 200}.items():
        answer = httpx.get(f"{open_service.url}/healthz", headers={"host": name}, timeout=HANG_S)
        assert answer.status_code == status


async def half_sent(served: Served, run: str, record: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Begin to send a record; the rest is for later."""
    reader, writer = await asyncio.open_connection(*served.address)
    head = f"POST /v1/runs/{run}/log HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(record)}\r\n\r\n"
    writer.write(head.encode() + record[: len(record) // 2])
    await writer.drain()
    return reader, writer


@pytest.mark.slow
def test_a_stop_answers_all_who_wait_and_takes_in_what_it_had_begun_to_take(tmp_path: Path) -> None:
    root = tmp_path / "root"
    push(str(root), "math")
    record = first_record("code")

    async def ask(served: Served) -> tuple[list[int], bytes]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=served.url, timeout=HANG_S, limits=limits) as client:
            parked = [
                asyncio.create_task(client.get("/v1/runs/math/versions/latest", params={"after": 0, "wait": 3600}))
                for _ in range(WAITERS)
            ]
            while True:  # until all of them are parked
                text = (await client.get("/metrics")).text
                if re.search(rf"^pulse_waiters {WAITERS}\.0$", text, re.M):
                    break
            reader, writer = await half_sent(served, "code", record)
            await client.get("/healthz")
            served.process.send_signal(signal.SIGTERM)
            answers = await asyncio.gather(*parked)
            writer.write(record[len(record) // 2 :])
            await writer.drain()
            answer = await reader.read()
            writer.close()
            return [one.status_code for one in answers], answer

    with pulse_serve(str(root), tmp_path, *OPEN) as served:
        statuses, answer = asyncio.run(ask(served))
        assert served.process.wait(HANG_S) == 0
        log = served.log.read_text()
    assert statuses == [204] * WAITERS
    assert answer.startswith(b"HTTP/1.1 201"), answer
    assert (root / "code" / record_key(0)).read_bytes() == record
    assert "Traceback" not in log


@pytest.mark.slow
def test_a_stop_ends_event_streams(tmp_path: Path) -> None:
    push(str(tmp_path / "root"), "math")
    with pulse_serve(str(tmp_path / "root"), tmp_path, *OPEN) as served:
        told = False
        with httpx.stream("GET", f"{served.url}/v1/runs/math/events?after=-1", timeout=HANG_S) as stream:
            for piece in stream.iter_text():
                if not told and "event: version" in piece:
                    told = True
                    served.process.send_signal(signal.SIGTERM)
        assert told
        assert served.process.wait(HANG_S) == 0


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_client_that_sends_no_more(tmp_path: Path) -> None:
    record = first_record("code")

    async def ask(served: Served) -> None:
        _, writer = await half_sent(served, "code", record)
        async with httpx.AsyncClient(base_url=served.url, timeout=HANG_S) as client:
            await client.get("/healthz")
        served.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(served.process.wait, HANG_S)
        writer.close()

    environment = {"PULSE_STOP_SECONDS": "1", "PULSE_BODY_SECONDS": f"{NEVER_S:g}"}
    with pulse_serve(str(tmp_path / "root"), tmp_path, *OPEN, environment=environment) as served:
        asyncio.run(ask(served))
    assert not (tmp_path / "root" / "code").exists()


@pytest.mark.slow
def test_a_store_that_never_answers_holds_up_neither_health_nor_a_stop(tmp_path: Path, moto: S3Server) -> None:
    environment = {**moto.environment, "PULSE_STOP_SECONDS": "1", "PULSE_STORE_ANSWER_S": f"{NEVER_S:g}"}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        root = f"s3://bucket/root?endpoint_url={endpoint}&region=us-east-1&addressing_style=path"
        with pulse_serve(root, tmp_path, *OPEN, environment=environment) as served:
            assert httpx.get(f"{served.url}/healthz", timeout=HANG_S).status_code == 200
            assert httpx.get(f"{served.url}/readyz", timeout=HANG_S).status_code == 503
            with socket.create_connection(served.address) as asking:
                asking.sendall(b"GET /v1/runs/math HTTP/1.1\r\nhost: localhost\r\n\r\n")
                assert httpx.get(f"{served.url}/healthz", timeout=HANG_S).status_code == 200
                served.stop(signal.SIGTERM)  # returns, while the store is still silent


@pytest.mark.slow
def test_the_log_of_a_whole_session_holds_no_token_and_no_signature(
    tmp_path: Path, moto_url: str, moto: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = str(tmp_path / "tokens.json")
    new = ["token", "new", "--name", "trainer-1", "--scope", "admin", "--file", tokens]
    assert main(new) == 0
    token = capsys.readouterr().out.strip()
    push(moto_url, "math")
    with pulse_serve(moto_url, tmp_path, "--tokens", tokens, environment=moto.environment) as served:
        with httpx.Client(base_url=served.url, headers=bearer(token), timeout=HANG_S) as client:
            route = client.get("/v1/runs/math/route").json()
            signed = route["legs"][0]["objects"][0]["url"]
            key = route["legs"][0]["objects"][0]["key"]
            assert "X-Amz-Signature=" in signed
            assert httpx.get(signed, timeout=HANG_S).status_code == 200
            assert client.get(f"/v1/runs/math/{key}").status_code == 307
            assert client.get("/v1/runs/math", params={"token": token, "url": signed}).status_code in (200, 422)
            assert client.get(f"/v1/runs/{token}").status_code == 404
            assert client.get("/v1/runs/math", headers=bearer(token + "x")).status_code == 401
            assert client.post("/v1/runs/math/urls", json={"keys": [key, token]}).status_code in (200, 400, 422)
            assert client.get("/v1/runs/math/versions/99").status_code == 404
        assert served.stop(signal.SIGTERM) == 0
        log = served.log.read_text()
    assert "GET /v1/runs/{run}/route math 200" in log
    assert "trainer-1" in log
    assert token[-43:] not in log
    assert "X-Amz" not in log
    assert "?" not in "".join(line for line in log.splitlines() if "pulse_server.auth.access" in line)


@pytest.mark.slow
def test_log_lines_can_be_json_and_a_misspelt_setting_is_one(tmp_path: Path) -> None:
    misspelt = {"PULSE_POLL_SECONS": "9"}
    with pulse_serve(str(tmp_path), tmp_path, *OPEN, "--log-format", "json", environment=misspelt) as served:
        httpx.get(f"{served.url}/v1/token", timeout=HANG_S)
        assert served.stop(signal.SIGTERM) == 0
        lines = [json.loads(line) for line in served.log.read_text().splitlines()]
    assert [line["route"] for line in lines if line["logger"] == "pulse_server.auth.access"] == ["/v1/token"]
    warnings = [line["message"] for line in lines if line["level"] == "WARNING"]
    assert warnings == ["PULSE_POLL_SECONS in the environment is no setting: is it PULSE_POLL_SECONDS?"]


@pytest.fixture
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PULSE_ROOT", "PULSE_TOKENS", "PULSE_TOKENS_FILE", "PULSE_INSECURE_OPEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_settings")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--insecure-open"], 2, "root"),
        (["--root", "memory://x"], 2, "pulse token new"),
        (["--root", "memory://x", "--tokens", "/nowhere/tokens.json"], 3, "pulse token new"),
        (["--root", "memory://x", "--insecure-open", "--host", "0.0.0.0"], 2, "--insecure-open"),
        (["--root", "memory://x", "--insecure-open", "--host", "::"], 2, "--insecure-open"),
        (["--root", "memory://x", "--insecure-open", "--host", "example.com"], 2, "--insecure-open"),
        (["--root", "gopher://x", "--insecure-open"], 2, "scheme"),
        (["--root", "memory://x", "--insecure-open", "--port", "70000"], 2, "--port"),
    ],
)
def test_what_can_not_be_served_is_refused(
    arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *arguments]) == code
    assert words in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("_no_settings")
def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--root", "memory://x", "--insecure-open", "--port", port]) == 2
    assert f"port {port}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
        ("", False),
    ],
)
def test_only_this_machines_own_addresses_are_its_own(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
