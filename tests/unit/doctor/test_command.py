"""``pulse doctor`` as a person and as a script see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import pulse_registry.cli.doctor
from pulse_registry.cli.exits import UNSAFE
from pulse_registry.cli.session import Access
from pulse_registry.doctor import CHECKS, Plan
from pulse_registry.store import FileStore, Store
from tests.support.command_line import Pulse
from tests.unit.doctor.broken import IgnoringStore

SMALL = Plan(rounds=2, racers=4, samples=4, listed=20, large_bytes=10_000)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse_registry.cli.doctor, "Plan", lambda **_: SMALL)


@contextmanager
def ignoring(access: Access) -> Iterator[Store]:
    yield IgnoringStore(FileStore(access.root))


def test_a_folder_is_safe_and_stays_empty(pulse: Pulse, tmp_path: Path) -> None:
    answer = pulse("doctor", "--root", tmp_path)
    assert answer.code == 0, answer
    assert answer.out.rstrip().endswith("safe for several writers")
    assert all(check.name in answer.out for check in CHECKS)
    assert [*tmp_path.iterdir()] == []


def test_a_script_gets_one_document(pulse: Pulse, tmp_path: Path) -> None:
    document = pulse("doctor", "--root", tmp_path, "--json").json
    assert document["safe_for_several_writers"] is True
    assert [finding["check"] for finding in document["findings"]][:-1] == [check.name for check in CHECKS]
    assert document["level"] == "ok"


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_an_unsafe_store_has_an_exit_code_of_its_own_and_a_way_out(
    pulse: Pulse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.setattr(pulse_registry.cli.doctor, "opened_store", ignoring)
    answer = pulse("doctor", "--root", tmp_path, *options)
    assert answer.code == UNSAFE == 9
    for words in ("UNSAFE for more than one writer", "one trainer at a time", "through the service"):
        assert words in answer.out
    assert [*FileStore(tmp_path).list("")] == []


def test_what_was_left_behind_is_removed_on_request(pulse: Pulse, tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("pulse-doctor-0123456789abcdef/begun", b"x")
    store.put("math/head", b"x")
    assert pulse("doctor", "--root", tmp_path, "--clean", "--json").json == {
        "removed": ["pulse-doctor-0123456789abcdef"]
    }
    assert pulse("doctor", "--root", tmp_path, "--clean").out == "nothing was left behind\n"
    assert [*store.list("")] == ["math/head"]


def test_a_store_that_can_t_be_reached_is_an_error_and_no_verdict(pulse: Pulse, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    answer = pulse("doctor", "--root", tmp_path / "file")
    assert (answer.code, answer.out) == (2, "")
    assert "is not a folder" in answer.err
