"""A token opens what its scope and its patterns say, until it expires, is revoked, or the file says otherwise."""

from __future__ import annotations

import fnmatch
import json
import logging
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import Request

from pulse_registry.errors import AccessDenied, InvalidArgument, NotFound
from pulse_schemas.api import Scope
from pulse_server.auth.access import ANYBODY, Guard, Principal, Requirement
from pulse_server.errors import Unauthenticated
from pulse_server.settings import Settings
from pulse_server.tokens import TokenFile, TokenSet, new_token
from tests.unit.server.edges import NOW, Clock, one_token


def asgi(token: str | None = None, *more: tuple[bytes, bytes], **path_params: str) -> dict[str, Any]:
    headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode())]
    return {"type": "http", "headers": [*headers, *more], "path_params": path_params}


def guard_of(tokens: TokenSet, clock: Clock | None = None) -> Guard:
    clock = clock or Clock()
    return Guard(Settings.read(root="memory://x", tokens=tokens), now=clock.now, monotonic=clock.monotonic)


def principal_for(runs: tuple[str, ...], scope: str = "read") -> Principal:
    return Principal.of(new_token("x", scope, runs, now=NOW)[1])


def test_a_good_token_says_whose_request_it_is() -> None:
    token, tokens = one_token("publish", ("math-*",))
    principal = guard_of(tokens).identify(asgi(token))
    assert (principal.name, principal.scopes, principal.runs) == ("tester", ("read", "publish"), ("math-*",))


@pytest.mark.parametrize("kind", ["Bearer", "bearer", "BEARER"])
def test_the_schemes_name_may_be_written_in_any_case(kind: str) -> None:
    token, tokens = one_token()
    scope = {"type": "http", "headers": [(b"authorization", f"{kind} {token}".encode())]}
    assert guard_of(tokens).identify(scope).name == "tester"


def test_without_one_good_token_there_is_no_way_in() -> None:
    token, tokens = one_token()
    other, _ = one_token()
    guard = guard_of(tokens)
    wrong: list[list[tuple[bytes, bytes]]] = [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer \xff\x00")],
        [(b"authorization", b"Basic " + token.encode())],
        [(b"authorization", token.encode())],
        [(b"authorization", b"Bearer " + other.encode())],
        [(b"authorization", b"Bearer " + token.encode() + b"A")],
        [(b"authorization", b"Bearer " + token.encode())] * 2,
        [(b"cookie", b"token=" + token.encode())],
    ]
    for headers in wrong:
        with pytest.raises(Unauthenticated) as raised:
            guard.identify({"type": "http", "headers": headers})
        assert raised.value.headers["www-authenticate"].startswith("Bearer")
        assert token not in str(raised.value)


def test_a_wrong_secret_is_compared_in_constant_time_as_an_unknown_id_is(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []

    def compare(a: str, b: str) -> bool:
        compared.append((a, b))
        return a == b

    token, tokens = one_token()
    guard = guard_of(tokens)
    monkeypatch.setattr("hmac.compare_digest", compare)
    for given_token in (token[:-4] + "AAAA", "pulse_000000000000_" + token[-43:]):
        with pytest.raises(Unauthenticated):
            guard.identify(asgi(given_token))
    assert [len(kept) for _, kept in compared] == [64, 64]


def test_a_token_ends_when_it_says() -> None:
    clock = Clock()
    token, entry = new_token("x", "read", ("*",), now=NOW, expires_at=NOW + timedelta(seconds=10))
    guard = guard_of(TokenSet(tokens=(entry,)), clock)
    clock.moment = NOW + timedelta(seconds=9.999)
    assert guard.identify(asgi(token)).expires_at == "2030-01-01T00:00:10.000Z"
    clock.moment = NOW + timedelta(seconds=10)
    with pytest.raises(Unauthenticated, match="expired"):
        guard.identify(asgi(token))


def test_a_request_that_waits_is_checked_again_by_the_time_that_it_is_then() -> None:
    clock = Clock()
    token, entry = new_token("x", "read", ("*",), now=NOW, expires_at=NOW + timedelta(seconds=10))
    request = request_for(guard_of(TokenSet(tokens=(entry,)), clock), asgi(token, run="math-7b"))
    needed = Requirement("read")
    needed.check(request)
    assert needed.holds(request)
    clock.moment = NOW + timedelta(seconds=10)
    assert not needed.holds(request)
    with pytest.raises(Unauthenticated, match="expired"):
        needed.check_again(request)
    assert needed.check(request).name == "x"  # whose request it was, for the log


def test_a_request_that_waits_is_checked_again_by_what_its_token_allows_then(
    watched: tuple[Guard, TokenFile, Clock],
) -> None:
    guard, file, clock = watched
    token, entry = new_token("second", "read", ("math-*",), now=NOW)
    file.add(entry)
    clock.seconds += 1.0
    request = request_for(guard, asgi(token, run="math-7b"))
    Requirement("read").check(request)
    file.remove(entry.id)
    file.add(entry.model_copy(update={"runs": ("code-*",)}))
    clock.seconds += 1.0
    with pytest.raises(AccessDenied, match="not for the run"):
        Requirement("read").check_again(request)


def test_each_scope_includes_those_before_it() -> None:
    may = {
        s: [n for n in ("read", "publish", "admin") if principal_for(("*",), s).may(n)]
        for s in ("read", "publish", "admin")
    }
    assert may == {"read": ["read"], "publish": ["read", "publish"], "admin": ["read", "publish", "admin"]}


_NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,8}", fullmatch=True)


@given(_NAMES, st.from_regex(r"[a-z0-9._*?-]{1,8}", fullmatch=True))
@example("math-7b", "math-*")
@example("math-7b", "math-7")
@example("mathx7b", "math.7b")
@example("a", "*")
def test_patterns_match_as_shells_match_them(run: str, pattern: str) -> None:
    assert principal_for((pattern,)).may("read", run) == fnmatch.fnmatchcase(run, pattern)


@given(_NAMES, st.lists(st.from_regex(r"[a-z0-9._*?-]{1,4}", fullmatch=True), min_size=1, max_size=4))
def test_one_pattern_of_several_is_enough(run: str, patterns: list[str]) -> None:
    assert principal_for(tuple(patterns)).may("read", run) == any(
        principal_for((p,)).may("read", run) for p in patterns
    )


def test_no_name_is_matched_for_hours() -> None:
    pattern = "*" + "a*" * 20 + "b"
    assert not principal_for((pattern,)).may("read", "a" * 128)
    assert principal_for((pattern,)).may("read", "a" * 127 + "b")


@pytest.mark.parametrize(
    ("scope", "run", "needed", "refusal"),
    [
        ("read", "math-7b", "read", None),
        ("read", "code", "read", "not for the run 'code'"),
        ("read", "math-7b", "publish", "no scope 'publish'"),
        ("publish", "math-7b", "admin", "no scope 'admin'"),
        ("admin", "code", "admin", "not for the run 'code'"),
    ],
)
def test_a_route_asks_for_its_scope_and_its_run(scope: str, run: str, needed: Scope, refusal: str | None) -> None:
    token, tokens = one_token(scope, ("math-*",))
    request = request_for(guard_of(tokens), asgi(token, run=run))
    if refusal is None:
        assert Requirement(needed).check(request).name == "tester"
        return
    with pytest.raises(AccessDenied, match=re.escape(refusal)) as raised:
        Requirement(needed).check(request)
    assert not isinstance(raised.value, Unauthenticated)


@pytest.mark.parametrize(
    "run", ["", ".", "..", "\u212a", "a/b", "a\\b", "a\x00", "a b", "ä", "a" * 129, "%2e%2e", "a\n", "٣"]
)
def test_what_is_no_name_of_a_run_is_refused_whoever_asks(run: str) -> None:
    token, tokens = one_token("admin")
    with pytest.raises(InvalidArgument, match="no run name"):
        Requirement("read").check(request_for(guard_of(tokens), asgi(token, run=run)))


def test_an_open_service_asks_nobody() -> None:
    guard = Guard(Settings.read(root="memory://x", insecure_open=True))
    assert guard.identify(asgi()) is ANYBODY
    assert ANYBODY.may("admin", "any-run")


def test_a_service_without_tokens_does_not_start() -> None:
    with pytest.raises(InvalidArgument, match="pulse token new"):
        Guard(Settings.read(root="memory://x"))
    with pytest.raises(NotFound, match=r"none\.json"):
        Guard(Settings.read(root="memory://x", tokens_file=Path("/nowhere/none.json")))


@pytest.fixture
def watched(tmp_path: Path) -> tuple[Guard, TokenFile, Clock]:
    clock, file = Clock(), TokenFile(tmp_path / "tokens.json")
    file.add(new_token("first", "read", ("*",), now=NOW)[1])
    settings = Settings.read(root="memory://x", tokens_file=file.path)
    return Guard(settings, now=clock.now, monotonic=clock.monotonic), file, clock


def test_a_new_token_opens_and_a_revoked_one_shuts_within_a_second(watched: tuple[Guard, TokenFile, Clock]) -> None:
    guard, file, clock = watched
    token, entry = new_token("second", "read", ("*",), now=NOW)
    file.add(entry)
    clock.seconds += 1.0
    assert guard.identify(asgi(token)).name == "second"
    file.remove(entry.id)
    clock.seconds += 1.0
    with pytest.raises(Unauthenticated):
        guard.identify(asgi(token))


@pytest.mark.parametrize("break_it", [lambda p: p.write_text("{"), Path.unlink], ids=["damaged", "gone"])
def test_a_broken_edit_leaves_the_tokens_as_they_were_and_is_logged_once(
    watched: tuple[Guard, TokenFile, Clock], caplog: pytest.LogCaptureFixture, break_it: Any
) -> None:
    guard, file, clock = watched
    token, entry = new_token("second", "read", ("*",), now=NOW)
    file.add(entry)
    clock.seconds += 1.0
    guard.identify(asgi(token))
    before = file.path.read_bytes()
    break_it(file.path)
    for _ in range(3):
        clock.seconds += 1.0
        assert guard.identify(asgi(token)).name == "second"
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "tokens stay as they were" in errors[0].getMessage()
    document = json.loads(before)
    document["tokens"].pop()
    replacement = file.path.with_name("replacement")
    replacement.write_text(json.dumps(document))
    os.replace(replacement, file.path)
    clock.seconds += 1.0
    with pytest.raises(Unauthenticated):
        guard.identify(asgi(token))


def request_for(guard: Guard, scope: dict[str, Any]) -> Request:
    class App:
        class state:  # noqa: N801 - as the app calls it
            pass

    App.state.guard = guard  # type: ignore[attr-defined]
    return Request(scope | {"app": App})
