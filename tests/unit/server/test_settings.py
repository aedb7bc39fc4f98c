"""Settings come from arguments, then the environment, then defaults; a wrong one is named, but not what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulse_registry.errors import InvalidArgument
from pulse_registry.process.environment import PREFIX, READ, strays
from pulse_server.settings import Settings
from pulse_server.tokens import TokenSet


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.model_fields:
        monkeypatch.delenv(f"PULSE_{field.upper()}", raising=False)


def test_a_root_is_all_that_must_be_said() -> None:
    settings = Settings.read(root="memory://x")
    assert (settings.root, settings.tokens, settings.insecure_open, settings.wait_max_s) == (
        "memory://x",
        None,
        False,
        60,
    )


def test_the_environment_is_read_and_arguments_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_ROOT", "memory://environment")
    monkeypatch.setenv("PULSE_POLL_SECONDS", "0.5")
    monkeypatch.setenv("PULSE_TOKENS_FILE", "tokens.json")
    settings = Settings.read(root="memory://argument")
    assert (settings.root, settings.poll_seconds, settings.tokens_file) == (
        "memory://argument",
        0.5,
        Path("tokens.json"),
    )


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_TOKENS_FILE", "")
    assert Settings.read(root="memory://x").tokens_file is None


def test_tokens_can_be_given_as_a_document_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_TOKENS", TokenSet().document().decode())
    assert Settings.read(root="memory://x").tokens == TokenSet()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "root: Field required"),
        ({"root": ""}, "root"),
        ({"root": "x", "poll_seconds": 0}, "poll_seconds"),
        ({"root": "x", "poll_seconds": "inf"}, "poll_seconds"),
        ({"root": "x", "part_bytes": 1}, "part_bytes"),
        ({"root": "x", "log_format": "xml"}, "log_format"),
        ({"root": "x", "colour": "red"}, "colour"),
        ({"root": "x", "tokens_file": "a", "tokens": {}}, "not from both"),
        ({"root": "x", "insecure_open": True, "tokens": {}}, "open to all has no tokens"),
        ({"root": "x,y", "gc_seconds": 60}, "gc_seconds is for a service of one root"),
        ({"root": "x", "probe_seconds": 5, "ready_seconds": 4}, "ready_seconds must be longer"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        Settings.read(**given)


@pytest.mark.parametrize("text", ["{hush", '{"tokens": [{"id": "hush"}]}', '"hush"'])
def test_what_a_wrong_setting_holds_is_not_said(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PULSE_TOKENS", text)
    with pytest.raises(InvalidArgument, match="tokens") as raised:
        Settings.read(root="x")
    assert "hush" not in str(raised.value)


NAMES = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("PULSE_POLL_SECONS", "PULSE_POLL_SECONDS"),
        ("PULSE_TOKEN_FILE", "PULSE_TOKENS_FILE"),
        ("PULSE_TRUSTED_PROXY", "PULSE_TRUSTED_PROXIES"),
        ("PULSE_MAX_BODY_SIZE", "PULSE_MAX_BODY_BYTES"),
        ("PULSE_COLOUR", None),
    ],
)
def test_a_variable_that_is_no_setting_is_found_with_the_nearest_one(name: str, near: str | None) -> None:
    assert strays([name, "PATH", *NAMES], NAMES | READ) == {name: near}


def test_what_belongs_to_other_programs_is_no_stray() -> None:
    others = "PULSE_PORT PULSE_IMAGE PULSE_SERVICE_HOST PULSE_PORT_8080_TCP_ADDR PULSE_REGISTRY_SERVICE_PORT_HTTP"
    assert strays(others.split(), NAMES | READ) == {}
    # The command line tells of near ones alone.
    assert not any(strays([*NAMES, *others.split(), "PULSE_SERVER", "PULSE_STATE_PATH"], READ).values())


def test_settings_do_not_change() -> None:
    settings = Settings.read(root="x")
    with pytest.raises(ValueError, match="frozen"):
        settings.root = "y"
