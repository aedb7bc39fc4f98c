"""Names of runs and tags: given in any case, stored in lower case, and by one rule wherever they come in."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path

import numpy
import pytest

import pulse_registry
from pulse_registry import InvalidArgument, NotFound
from pulse_registry.cli import main
from pulse_registry.log.names import fold, run_name, tag_name, version_name
from pulse_registry.store import MemoryStore
from pulse_server import create_app
from pulse_server.settings import Settings
from pulse_server.tokens import new_token
from tests.unit.server.calling import calling

GIVEN, STORED = "Qwen2.5-Math-7B", "qwen2.5-math-7b"
WEIGHTS = {"w": numpy.zeros(4, numpy.float32)}


def test_capitals_are_folded_and_nothing_else_changes() -> None:
    assert run_name(GIVEN) == STORED
    assert run_name(STORED) == STORED
    assert tag_name("Best-So.Far_1") == "best-so.far_1"
    assert version_name("Latest") == "latest"


@pytest.mark.parametrize(
    "given",
    [
        "",
        ".",
        "..",
        "-A",
        ".A",
        "A/B",
        "A\\B",
        "A B",
        "A\n",
        "\nA",
        "A\0",
        "A" * 129,
        "Ä",
        "\u212a",
        "\u0130",
        "\uff21",
        "٣",
    ],
)
def test_what_was_no_run_name_is_none_in_capitals(given: str) -> None:
    """The Kelvin sign and the dotted I become ASCII by `str.lower`: two names would be one that do not look so."""
    with pytest.raises(InvalidArgument, match="no run name"):
        run_name(given)


@pytest.mark.parametrize("given", ["", "1A", "-a", "A" * 65, "A/B", "Latest", "LATEST", "\u212aa"])
def test_what_was_no_tag_is_none_in_capitals(given: str) -> None:
    with pytest.raises(InvalidArgument):
        tag_name(given)


def test_letters_of_other_scripts_are_left_as_they_are() -> None:
    assert fold("\u212a\u0130Ä\uff21Z") == "\u212a\u0130Ä\uff21z"


def test_a_message_does_not_repeat_a_name_of_any_length() -> None:
    with pytest.raises(InvalidArgument) as raised:
        run_name("A" * 10_000)
    assert len(str(raised.value)) < 500


def test_open_and_tags_take_capitals_and_store_lower_case(tmp_path: Path) -> None:
    with pulse_registry.open(
        str(tmp_path),
        run=GIVEN,
        push=pulse_registry.PushOptions(dtype="keep"),
        compute=pulse_registry.ComputeOptions(backend="reference"),
    ) as registry:
        registry.push(0, WEIGHTS)
        registry.tag("Best", 0)
        assert (registry.run, registry.tags()) == (STORED, {"best": 0})
        assert registry.version("BEST").version == registry.version("Latest").version == 0
        registry.tag("BEST", None)
        assert registry.tags() == {}
    assert [path.name for path in tmp_path.iterdir()] == [STORED]
    with pulse_registry.open(str(tmp_path), run=STORED, create=False) as registry:
        assert registry.version().version == 0


def test_the_command_line_takes_capitals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pulse_registry.open(
        str(tmp_path),
        run=STORED,
        push=pulse_registry.PushOptions(dtype="keep"),
        compute=pulse_registry.ComputeOptions(backend="reference"),
    ) as registry:
        registry.push(0, WEIGHTS)
    at = ("--root", str(tmp_path), "--run", GIVEN)
    for command in (("log",), ("tag", "Best", "--version", "LATEST"), ("verify", "--version", "BEST"), ("route",)):
        assert main([*command, *at]) == 0, command
    assert main(["doctor", *at]) == 0
    assert main(["inspect", "head", *at]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("path", ["", "/chain", "/versions/latest", "/head", "/log/0", "/workers"])
def test_the_service_takes_capitals_in_its_urls(path: str) -> None:
    root = f"memory://{uuid.uuid4().hex}"
    with pulse_registry.open(
        root,
        run=STORED,
        push=pulse_registry.PushOptions(dtype="keep"),
        compute=pulse_registry.ComputeOptions(backend="reference"),
    ) as registry:
        registry.push(0, WEIGHTS)
    settings = Settings.read(root="memory://unused", insecure_open=True)
    with calling(create_app(settings, MemoryStore(root.removeprefix("memory://")))) as call:
        asked = [call("GET", f"/v1/runs/{run}{path}") for run in (STORED, GIVEN)]
    assert [answer.status for answer in asked] == [200, 200]
    assert asked[0].body == asked[1].body


def test_a_run_in_capitals_is_the_one_that_a_tokens_pattern_is_for() -> None:
    _, entry = new_token("me", "read", ("Qwen*", "MATH"), now=datetime(2030, 1, 1, tzinfo=UTC))
    assert entry.runs == ("qwen*", "math")


def test_no_tag_of_other_letters_is_looked_up_as_another(tmp_path: Path) -> None:
    with pulse_registry.open(
        str(tmp_path),
        run="a",
        push=pulse_registry.PushOptions(dtype="keep"),
        compute=pulse_registry.ComputeOptions(backend="reference"),
    ) as registry:
        registry.push(0, WEIGHTS)
        registry.tag("k", 0)
        with pytest.raises(NotFound):
            registry.version("\u212a")
