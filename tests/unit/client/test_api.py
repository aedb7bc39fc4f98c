"""Requests to the service: what is checked, what an answer means, where the token goes."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

import pytest

from pulse_registry.client.api import ServiceApi
from pulse_registry.client.problems import OTHER, STATUS
from pulse_registry.client.transport import Timeouts
from pulse_registry.errors import (
    AccessDenied,
    InvalidArgument,
    NotFound,
    PulseError,
    StoreUnavailable,
    UnsupportedFormat,
)
from pulse_registry.store.watchdog import LowSpeedLimit
from pulse_schemas.api import SnapshotList
from tests.support.scripted_http import PATIENT, Asked, Reply, digest, document, problem, serving
from tests.support.waiting import HANG_S

TOKEN = "pulse_abc_secret-of-the-caller"


def api(url: str, token: str | None = TOKEN, timeouts: Timeouts = PATIENT) -> ServiceApi:
    return ServiceApi(url, token, timeouts)


@pytest.mark.parametrize("kind", STATUS, ids=lambda kind: kind.__name__)
def test_every_error_comes_back_as_itself(kind: type[PulseError]) -> None:
    with serving(lambda _: problem(kind.__name__, STATUS[kind].value, "because")) as server:
        client = api(server.url)
        with pytest.raises(kind, match="because") as caught:
            client.ask("GET", "/v1/runs")
        client.close()
    assert type(caught.value) is kind


@pytest.mark.parametrize(("name", "kind"), OTHER.items(), ids=OTHER)
def test_problems_of_the_request_come_back_as_what_a_caller_does_about_them(name: str, kind: type[PulseError]) -> None:
    with serving(lambda _: problem(name, 400)) as server:
        client = api(server.url)
        with pytest.raises(kind) as caught:
            client.ask("GET", "/v1/runs")
        client.close()
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, AccessDenied), (403, AccessDenied), (404, NotFound), (413, InvalidArgument), (502, StoreUnavailable)],
)
def test_an_answer_that_is_no_problem_document_goes_by_its_status(status: int, kind: type[PulseError]) -> None:
    with serving(lambda _: Reply(status, body=b"<html>a proxy's page</html>")) as server:
        client = api(server.url)
        with pytest.raises(kind, match=f"HTTP {status}"):
            client.ask("GET", "/v1/runs")
        client.close()


@pytest.mark.parametrize("status", [200, 404])
def test_a_damaged_answer_is_not_believed(status: int) -> None:
    good = document({"snapshots": [1]}) if status == 200 else problem("NotFound", 404)
    damaged = Reply(status, good.headers, good.body.replace(b"s", b"t", 1))
    with serving(lambda _: damaged) as server:
        client = api(server.url)
        with pytest.raises(StoreUnavailable, match="Content-Digest"):
            client.ask("GET", "/v1/runs")
        client.close()


def test_an_answer_without_a_digest_is_not_the_services() -> None:
    with serving(lambda _: Reply(body=b"<html>log in to this network</html>")) as server:
        client = api(server.url)
        with pytest.raises(StoreUnavailable, match="not a service's"):
            client.ask("GET", "/v1/runs")
        client.close()


def test_an_answer_of_another_api_asks_for_an_upgrade() -> None:
    with serving(lambda _: document({"snaps": [1]})) as server:
        client = api(server.url)
        with pytest.raises(UnsupportedFormat, match="upgrade"):
            client.json(SnapshotList, "GET", "/v1/runs/r/snapshots")
        client.close()


def test_fields_that_a_newer_service_added_are_no_matter() -> None:
    with serving(lambda _: document({"snapshots": [63], "newer": True})) as server:
        client = api(server.url)
        assert client.json(SnapshotList, "GET", "/v1/runs/r/snapshots").snapshots == (63,)
        client.close()


def test_a_request_carries_token_and_digest_to_the_path_below_the_urls_prefix() -> None:
    with serving(lambda _: document({})) as server:
        client = api(f"{server.url}/below/")
        client.ask("POST", "/v1/runs/r/log", body=b"{}")
        client.close()
    (asked,) = server.asked
    assert asked.path == "/below/v1/runs/r/log"
    assert asked.headers["Authorization"] == f"Bearer {TOKEN}"
    assert asked.headers["Content-Digest"] == digest(b"{}")


def test_no_redirect_is_followed_with_the_token() -> None:
    with serving(lambda _: document({})) as other:
        with serving(lambda _: Reply(307, {"Location": f"{other.url}/v1/runs"})) as server:
            client = api(server.url)
            with pytest.raises(InvalidArgument, match="redirects"):
                client.ask("GET", "/v1/runs")
            client.close()
        assert other.asked == []


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("3", 3.0), ("7200", 3600.0), ("Wed, 21 Oct 2015 07:28:07 GMT", 7.0), ("soon", None), ("", None)],
)
def test_an_error_says_how_long_the_service_asks_to_be_left_alone(said: str, seconds: float | None) -> None:
    with serving(
        lambda _: problem("TooManyRequests", 429, Date="Wed, 21 Oct 2015 07:28:00 GMT", **{"Retry-After": said})
    ) as server:
        client = api(server.url)
        with pytest.raises(StoreUnavailable) as caught:
            client.ask("GET", "/v1/runs")
        client.close()
    assert caught.value.retry_after_s == seconds


def test_a_service_that_is_gone_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        client = api(f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(StoreUnavailable, match="refused"):
            client.ask("GET", "/v1/runs")
        client.close()


def test_a_silent_service_is_given_up() -> None:
    with serving(lambda _: Reply(pieces=[b"too late"], pause_s=HANG_S)) as server:
        client = api(server.url, timeouts=Timeouts(silence_s=0.1))
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            client.ask("GET", "/v1/runs")
        client.close()


def test_an_answer_that_trickles_is_given_up() -> None:
    with serving(lambda _: Reply(pieces=[b"x"] * 5_000, pause_s=0.01)) as server:
        client = api(server.url, timeouts=Timeouts(silence_s=HANG_S, low_speed=LowSpeedLimit(6 << 20, 0.1)))
        with pytest.raises(StoreUnavailable, match="stalled"):
            client.ask("GET", "/v1/runs")
        client.close()


def test_an_answer_that_is_cut_off_can_be_asked_for_again() -> None:
    with serving(lambda _: Reply(body=b"half", length=8)) as server:
        client = api(server.url)
        with pytest.raises(StoreUnavailable):
            client.ask("GET", "/v1/runs")
        client.close()


def script_of_all_sorts(asked: Asked) -> Reply:
    return problem("Unauthenticated", 401, "no such token") if asked.path.endswith("bad") else document({})


def test_the_token_is_in_no_message_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(script_of_all_sorts) as server:
        client = api(server.url)
        client.ask("GET", "/v1/runs")
        with pytest.raises(AccessDenied) as caught:
            client.ask("GET", "/v1/bad")
        told = [repr(client), str(caught.value), repr(caught.value), caplog.text]
        client.close()
    assert "GET" in caplog.text
    assert not any(TOKEN in text or "secret" in text for text in told)


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "ключ", "a" * 1025])
def test_what_can_be_no_token_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        api("https://host", token)
    assert not token.strip() or token not in str(caught.value)


@pytest.mark.parametrize(
    "host",
    ["pulse.example.com", "10.0.0.1", "127.0.0.1.example.com", "localhost.example.com", "[2001:db8::1]", "127.1"],
)
def test_a_token_goes_in_clear_to_no_other_machine(host: str) -> None:
    with pytest.raises(InvalidArgument, match="allow_http=True, --allow-http or PULSE_ALLOW_HTTP") as caught:
        api(f"http://{host}:8080")
    assert TOKEN not in str(caught.value)
    for good in (
        api(f"https://{host}"),
        api(f"http://{host}", None),
        ServiceApi(f"http://{host}", TOKEN, PATIENT, allow_http=True),
    ):
        good.close()


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "127.9.9.9", "[::1]:8080", "localhost", "LOCALHOST:80"])
def test_a_token_may_go_in_clear_to_this_machine(host: str) -> None:
    api(f"http://{host}").close()


def test_what_goes_to_this_machine_goes_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda _: document({})) as proxy, serving(lambda _: document({})) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        client = api(server.url)
        client.ask("GET", "/v1/token")
        client.close()
    assert (len(proxy.asked), len(server.asked)) == (0, 1)


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Name a proxy for all that goes over http:// to other machines."""
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("http_proxy", raising=False)
    return lambda url: monkeypatch.setenv("HTTP_PROXY", url)


def test_what_fails_at_a_proxy_is_not_blamed_on_the_service_alone(proxied: Callable[[str], None]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        proxied(f"http://user:geheim@{place}")
        client = api("http://pulse.example", None)
        with pytest.raises(StoreUnavailable, match=rf"refused; .* the proxy {place} \(HTTP_PROXY\)") as lost:
            client.ask("GET", "/v1/runs")
        client.close()
    assert "geheim" not in str(lost.value)


def test_a_page_of_the_proxys_own_is_told_as_one(proxied: Callable[[str], None]) -> None:
    with serving(lambda _: Reply(502, body=b"<html>no such host</html>")) as proxy:
        proxied(proxy.url)
        client = api("http://pulse.example", None)
        with pytest.raises(StoreUnavailable, match=r"HTTP 502; it went through the proxy .* \(HTTP_PROXY\)"):
            client.ask("GET", "/v1/runs")
        client.close()


@pytest.mark.parametrize("url", ["socks4://user:geheim@host:1", "http://user:geheim@host:port", "http://[::1", ":::"])
def test_a_proxy_that_can_not_be_used_is_an_error_of_the_environment(proxied: Callable[[str], None], url: str) -> None:
    proxied(url)
    with pytest.raises(InvalidArgument, match=r"a proxy that can't be used \(.*HTTP_PROXY") as caught:
        api("http://pulse.example", None)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "/", "/v1", "/v1/", "/below/v1"])
def test_a_url_may_end_in_the_apis_own_prefix(prefix: str) -> None:
    with serving(lambda _: document({})) as server:
        client = api(f"{server.url}{prefix}")
        client.ask("GET", "/v1/token")
        client.close()
    assert [asked.path for asked in server.asked] == [f"{'/below' if 'below' in prefix else ''}/v1/token"]


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (f"{TOKEN}\n", "ends with a space or a newline"),
        (f" {TOKEN}", "ends with a space or a newline"),
        (f"Bearer {TOKEN}", "without 'Bearer'"),
        (f'"{TOKEN}"', "quotation marks"),
        (" ", "empty"),
        ("a" * 1025, "1,024 characters"),
        ("pulse_é", "no token has"),
    ],
)
def test_a_token_that_is_none_is_refused_with_the_reason(token: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        api("https://host", token)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "https://",
        "https://user:password@host",
        "https://host?token=secret",
        "https://host/#secret",
        "https://host:port",
        "https://host:99999",
        "https://ho st",
        "https://host/\\a",
        "https://hóst",
    ],
)
def test_what_is_no_url_of_a_service_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        api(url)
    assert "secret" not in str(caught.value)
    assert "password" not in str(caught.value)
