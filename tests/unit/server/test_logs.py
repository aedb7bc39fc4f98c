"""Log lines say what happened, and hold no token and no signed URL, whoever wrote them."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_server.settings import Settings
from pulse_server.telemetry.logs import ACCESS, QUIET, JsonLines, TextLines, configure, flush, redacted
from tests.unit.server.edges import bearer, client_of, one_token, small_app

SIGNED = (
    "http://bucket.example/a/objects/x?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=KEY%2F20300101%2Fs3"
    "&X-Amz-Expires=900&X-Amz-Security-Token=SESSION&X-Amz-Signature=0123456789abcdef"
)
SECRETS = ("0123456789abcdef", "KEY%2F", "SESSION")


@contextmanager
def logged(formatter: logging.Formatter) -> Iterator[io.StringIO]:
    """Collect what all loggers write, at every level."""
    stream, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(stream), root.level
    handler.setFormatter(formatter)
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def lines_of(token: str, tokens: Any, *requests: tuple[str, str], **settings: Any) -> list[dict[str, Any]]:
    """Return the access log's lines of some requests."""
    app = small_app(Settings.read(root="memory://x", tokens=tokens, **settings))

    async def main() -> None:
        async with client_of(app, headers=bearer(token)) as client:
            for method, path in requests:
                await client.request(method, path)

    with logged(JsonLines()) as stream:
        asyncio.run(main())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in lines if line["logger"] == ACCESS]


def test_a_request_is_a_line_with_its_route_its_status_and_whose_token_it_was() -> None:
    token, tokens = one_token(name="trainer-1")
    (line,) = lines_of(token, tokens, ("GET", "/v1/runs/math-7b?after=3&secret=x"))
    assert line.pop("time").endswith("Z")
    assert line.pop("ms") >= 0
    assert line == {
        "level": "INFO",
        "logger": ACCESS,
        "method": "GET",
        "route": "/v1/runs/{run}",
        "run": "math-7b",
        "status": 200,
        "token": "trainer-1",
    }


def test_what_the_caller_wrote_into_a_path_is_no_part_of_a_line() -> None:
    token, tokens = one_token()
    paths = ["/v1/runs/forged%20line", "/v1/runs/%0Aforged%20line", "/forged", "/v1/runs/a/objects/forged?forged=1"]
    lines = lines_of(token, tokens, *[("GET", path) for path in paths])
    assert [(line["route"], line["run"], line["status"]) for line in lines] == [
        ("/v1/runs/{run}", "-", 400),
        ("(none)", "-", 400),
        ("(none)", "-", 404),
        ("/v1/runs/{run}/objects/{path:path}", "a", 405),
    ]
    assert "forged" not in json.dumps(lines)


def test_what_is_refused_is_logged_too() -> None:
    _, tokens = one_token()
    lines = lines_of("wrong", tokens, ("GET", "/v1/runs/a"), ("POST", "/v1/runs/a/log"), ("GET", "/v1/runs/a/broken"))
    assert [(line["status"], line["token"]) for line in lines] == [(401, "-"), (401, "-"), (500, "-")]


def test_the_access_log_can_be_turned_off() -> None:
    token, tokens = one_token()
    assert lines_of(token, tokens, ("GET", "/v1/runs/a"), access_log=False) == []


def test_no_line_of_a_session_holds_a_token_or_a_query() -> None:
    token, tokens = one_token()
    app = small_app(Settings.read(root="memory://x", tokens=tokens))

    async def main() -> None:
        async with client_of(app, headers=bearer(token)) as client:
            await client.get("/v1/runs/a", params={"token": token})
            await client.get(f"/v1/runs/a/broken?token={token}")
            await client.get(f"/{token}")

    with logged(TextLines()) as text, logged(JsonLines()) as lines:
        asyncio.run(main())
        logging.getLogger("somebody").error("could not read %s with %s", SIGNED, {"Authorization": f"Bearer {token}"})
        try:
            raise RuntimeError(SIGNED)
        except RuntimeError:
            logging.getLogger("somebody").exception("a traceback")
    for written in (text.getvalue(), lines.getvalue()):
        assert "a traceback" in written
        assert token[-43:] not in written
        assert not [secret for secret in SECRETS if secret in written]


def test_a_signed_url_loses_what_makes_it_work_and_stays_readable() -> None:
    text = redacted(f"GET {SIGNED} failed")
    assert not [secret for secret in SECRETS if secret in text]
    assert text.startswith("GET http://bucket.example/a/objects/x?X-Amz-Algorithm=")
    assert text.endswith(" failed")


@given(st.from_regex(r"pulse_[0-9a-f]{12}_[A-Za-z0-9_-]{43}", fullmatch=True), st.text(max_size=5), st.text(max_size=5))
def test_no_token_gets_through_wherever_it_stands(token: str, before: str, after: str) -> None:
    assert token[-43:] not in redacted(f"{before}{token}{after}")


def test_text_lines_say_when_how_bad_and_who() -> None:
    record = logging.LogRecord("pulse_server.x", logging.WARNING, "", 0, "%d things", (3,), None)
    line = TextLines().format(record)
    assert line.endswith("Z WARNING pulse_server.x: 3 things")


FORGED = "2026-01-01T00:00:00.000Z INFO pulse_server.auth.access: GET /v1/runs math-7b 200 1.0 admin"


@pytest.mark.parametrize("name", ["\n", "\r\n", "\x85", "\u2028", "\x1b[2K\x1b[1A", "\x9b1A", "\u202e"])
@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()], ids=["text", "json"])
def test_no_name_forges_a_line(formatter: logging.Formatter, name: str) -> None:
    with logged(formatter) as stream:
        logging.getLogger("pulse_server.x").warning("run %s: it failed", f"a{name}{FORGED}")
        logging.getLogger("uvicorn.error").error(f"Invalid HTTP request: {name}{FORGED}")
    lines = stream.getvalue().split("\n")[:-1]
    assert len(lines) == 2
    for line in lines:
        assert line.isprintable()
        assert line.isascii()
        assert FORGED in line


def test_no_path_or_message_forges_a_line_and_a_traceback_is_set_in() -> None:
    path = f"/v1/runs/x\n{FORGED}\x1b]0;owned\x07"
    record = logging.LogRecord("pulse_server.x", logging.ERROR, "", 0, "GET %s: CorruptObject", (path,), None)
    try:
        raise ValueError(f"damaged\n{FORGED}")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    lines = TextLines().format(record).split("\n")
    assert all(line.isprintable() for line in lines)
    assert "\\n2026" in lines[0]
    assert len(lines) > 3
    assert all(line.startswith("  ") for line in lines[1:])
    text = JsonLines().format(record)
    assert text.isprintable()
    assert json.loads(text)["message"] == f"GET {path}: CorruptObject"


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()], ids=["text", "json"])
def test_a_message_that_is_cut_is_cut_after_its_secrets_are_gone(formatter: logging.Formatter) -> None:
    token, _ = one_token(name="x")
    for length in range(6_900, 7_100, 7):
        record = logging.LogRecord("x", logging.ERROR, "", 0, "%s", ("y" * length + token + "z" * 9_000,), None)
        line = formatter.format(record)
        assert len(line) < 9_000
        assert token[-43:-30] not in line


@pytest.fixture
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("logThreads", "logProcesses", "logMultiprocessing"):
        monkeypatch.setattr(logging, name, getattr(logging, name))
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    quiet = {name: logging.getLogger(name).level for name in QUIET}
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, level in quiet.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_process_logs_to_stderr_in_the_form_that_its_settings_say(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(Settings.read(root="memory://x", log_format=form))
    logging.getLogger("pulse_server.x").info("hello")
    logging.getLogger("httpx").info("HTTP Request: GET %s", SIGNED)
    flush()
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == ""
    assert (json.loads(line)["message"] if form == "json" else line.rpartition(": ")[2]) == "hello"
