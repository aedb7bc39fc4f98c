"""``pulse tag`` and ``pulse gc``: names that keep versions, a plan in words and bytes, and its execution."""

from __future__ import annotations

from pathlib import Path

import pytest

import pulse_registry
from tests.support.checkpoints import bits, held
from tests.support.command_line import Pulse, Run

LAST = ("--keep-last", "2", "--keep-for", "0s", "--grace", "0s", "--orphans", "0s")


@pytest.fixture
def whole(run: Run, pulse: Pulse) -> Run:
    """The run, whose versions 3 and 4 need no others."""
    with pulse_registry.open(str(run.root), run=run.name) as registry:
        model = registry.load(3)
    with pulse_registry.open(
        str(run.root), run=run.name, push=pulse_registry.PushOptions(keyframe_every=1)
    ) as registry:
        registry.push(50, model)
        registry.push(60, model)
    return run


def test_tags_are_given_listed_moved_and_taken_away(run: Run, pulse: Pulse, tmp_path: Path) -> None:
    assert pulse("tag").out.split()[:2] == ["tag", "version"]
    assert pulse("tag", "best", "--version", "1").out == "best stands for version 1 now\n"
    assert pulse("tag", "newest", "--version", "latest", "--json").json == {
        "tag": "newest",
        "version": 4,
        "before": None,
    }
    assert pulse("tag", "best", "--version", "newest").out == "best stands for version 4 now; it stood for version 1\n"
    assert pulse("tag", "best", "--version", "4").out == "best stands for version 4 now, as before\n"
    assert pulse("tag", "--json").json == {"best": 4, "newest": 4}
    assert pulse("tag", "other", "--version", "2").code == 0
    assert pulse("pull", "--version", "other", "--out", tmp_path / "out").code == 0
    assert held(tmp_path / "out") == bits(run.states[2])
    assert pulse("tag", "newest", "--remove").out == "newest stands for nothing now; it stood for version 4\n"
    assert pulse("tag", "other", "--remove", "--json").json == {"tag": "other", "version": None, "before": 2}
    assert pulse("tag", "--json").json == {"best": 4}
    assert pulse("tag", "gone", "--version", "99").code == 3


def test_a_tags_name_alone_shows_where_it_is_and_moves_nothing(run: Run, pulse: Pulse) -> None:
    assert pulse("tag", "best", "--version", "1").code == 0
    records = {path.name for path in (run.folder / "log").glob("*.json")}
    assert pulse("tag", "best").out == "best stands for version 1\n"
    assert pulse("tag", "best", "--json").json == {"tag": "best", "version": 1}
    for missing in (("tag", "bets"), ("tag", "bets", "--remove")):
        answer = pulse(*missing)
        assert answer.code == 3
        assert "no tag 'bets'" in answer.err
    assert {path.name for path in (run.folder / "log").glob("*.json")} == records


@pytest.mark.parametrize(
    ("name", "words"), [("latest", "the newest version at any time"), ("Best 1", "no name of a tag")]
)
def test_what_can_be_no_tag_is_said_in_a_sentence(run: Run, pulse: Pulse, name: str, words: str) -> None:
    for more in ((), ("--version", "1"), ("--remove",)):
        answer = pulse("tag", name, *more)
        assert answer.code == 2
        assert words in answer.err
        assert "pydantic" not in answer.err
        assert "validation" not in answer.err


def test_a_plan_is_shown_and_nothing_is_done_without_delete(whole: Run, pulse: Pulse) -> None:
    files = {path for path in whole.folder.rglob("*") if path.is_file()}
    text = pulse("gc", *LAST)
    assert text.code == 0
    assert "5 versions would be retired, from 0 to 4" in text.out
    assert "one of the last 2" in text.out
    assert "nothing was done; --delete does it" in text.out
    assert {path for path in whole.folder.rglob("*") if path.is_file()} - files == {whole.folder / "clock"}
    assert len(pulse("log", "--json").json) == 7


def test_with_delete_versions_go_in_two_runs(whole: Run, pulse: Pulse, tmp_path: Path) -> None:
    assert pulse("tag", "best", "--version", "1").code == 0
    first = pulse("gc", *LAST, "--delete", "--json").json
    assert first["retired"]["versions"] == [2, 3, 4]
    assert (first["dry_run"], first["deleted"], first["retired"]["bytes"] > 0) == (False, 0, True)
    assert first["kept"][1] == {"version": 1, "why": "tag best"}
    assert pulse("pull", "--version", "3", "--out", tmp_path / "out").code == 3
    second = pulse("gc", *LAST, "--yes", "--json").json
    assert second["deleted"] == first["retired"]["objects"]
    assert [entry["version"] for entry in pulse("log", "--json").json] == [0, 1, 5, 6]
    assert pulse("verify", "--version", "best").code == 0
    assert pulse("verify").code == 0
    third = pulse("gc", *LAST, "--delete", "--json").json
    assert (third["retired"]["objects"], third["deleted"], third["waiting"]) == (0, 0, 0)
    gone = pulse("pull", "--version", "3", "--out", tmp_path / "out", "--json")
    assert (gone.code, gone.json["error"]) == (3, "Gone")


def test_a_run_that_is_not_there_has_nothing_to_collect(run: Run, pulse: Pulse) -> None:
    assert pulse("gc", "--run", "other").code == 3


def test_bases_are_listed_closed_and_deleted(run: Run, pulse: Pulse, tmp_path: Path) -> None:
    for name in ("chat", "code"):
        assert pulse("pull", "--out", tmp_path / name).code == 0
        source = next((tmp_path / name).glob("*.safetensors"))
        assert pulse("push", "--run", name, "--base", f"{run.name}@latest", "--step", "0", source).code == 0
    [found] = pulse("bases", "--json").json
    assert (found["files"], found["runs"], found["unborn"]) == (2, ["chat", "code", run.name], [])
    assert (found["closed"], found["due"]) == (None, None)
    assert f"3: chat, code, {run.name}" in pulse("bases").out
    for key in [*run.root.glob("*/bases/*")]:
        key.unlink()
    born = run.root / "unborn" / "bases"
    born.mkdir(parents=True)
    (born / found["base"]).write_bytes(b"pulse\n")
    assert f"delete unborn/bases/{found['base']}" in pulse("bases").out
    (born / found["base"]).unlink()
    assert "would be closed" in pulse("bases").out
    assert pulse("bases", "--delete", "--json").json[0]["due"] == "closed"
    assert pulse("bases", "--json").json[0]["due"] is None
    assert pulse("bases", "--grace", "0s").code == 0
