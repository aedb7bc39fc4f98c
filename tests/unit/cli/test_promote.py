"""``pulse promote``: which runs, what it says of them, and how it ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pulse_registry
from tests.support.command_line import Pulse
from tests.support.registries import change, small_model


def push(root: Path, run: str, versions: int) -> None:
    model = small_model()
    with pulse_registry.open(str(root), run=run, push=pulse_registry.PushOptions(dtype="keep")) as registry:
        for step in range(versions):
            change(model, step)
            registry.push(step, model)


@pytest.fixture
def roots(tmp_path: Path, pulse: Pulse) -> tuple[Path, Path]:
    us, eu = tmp_path / "us", tmp_path / "eu"
    for run in ("math-1", "math-2", "chat"):
        push(us, run, 2)
    assert pulse("mirror", us, eu).code == 0
    return us, eu


def test_the_runs_that_match_move_and_others_stay(roots: tuple[Path, Path], pulse: Pulse) -> None:
    us, eu = roots
    told = pulse("promote", eu, "--from", us, "--runs", "math-*", "--json").json["runs"]
    assert [(one["run"], one["version"]) for one in told] == [("math-1", 1), ("math-2", 1)]
    seq = told[0]["record"]
    assert all(one["home"] == eu.as_uri() for one in told)
    tagged = pulse("tag", "--root", us, "--run", "math-1", "best", "--version", 0)
    assert (tagged.code, f"record {seq} moved it to {eu.as_uri()}" in tagged.err) == (4, True)
    assert pulse("tag", "--root", us, "--run", "chat", "best", "--version", 0).code == 0
    assert pulse("tag", "--root", eu, "--run", "math-1", "best", "--version", 0).code == 0
    assert f"record {seq} moved the run to {eu.as_uri()}" in pulse("log", "--root", us, "--run", "math-1").out
    record = us / "math-1" / "log" / f"{seq:012d}.json"
    assert pulse("inspect", record, "--json").json["to"] == eu.as_uri()
    assert pulse("inspect", eu / "math-1" / "home", "--json").json["type"] == "home"
    assert "lives at" in pulse("promote", eu, "--from", us, "--runs", "math-1").out


def test_one_run_that_can_not_move_keeps_no_other_from_it(roots: tuple[Path, Path], pulse: Pulse) -> None:
    us, eu = roots
    shutil.rmtree(eu / "chat")
    push(eu, "chat", 1)
    answer = pulse("promote", eu, "--from", us, "--runs", "*", "--json")
    assert answer.code == 4
    told = {one["run"]: one.get("error") for one in answer.json["runs"]}
    assert told == {"chat": "Conflict", "math-1": None, "math-2": None}
    assert pulse("tag", "--root", us, "--run", "chat", "best", "--version", 0).code == 0
    assert pulse("promote", eu, "--from", us, "--runs", "none-*").code == 3
    (us / "unborn" / "layouts").mkdir(parents=True)
    (us / "unborn" / "layouts" / "1.json").write_text("its first push is under way")
    answer = pulse("promote", eu, "--from", us, "--runs", "[mu]*", "--json")
    assert (answer.code, [one["run"] for one in answer.json["runs"]]) == (0, ["math-1", "math-2"])
    assert pulse("promote", eu, "--from", us, "--runs", "unborn*").code == 3
    assert pulse("promote", eu, "--from", us).code == 2


def test_a_lost_home_is_left_and_fenced_by_the_same_command_once_it_is_back(
    roots: tuple[Path, Path], pulse: Pulse
) -> None:
    us, eu = roots
    push(us, "math-1", 3)
    lost = us.rename(us.with_name("lost"))
    answer = pulse("promote", eu, "--from", us, "--runs", "math-1", "--lost")
    assert answer.code != 0
    assert "newest version 1" in answer.out
    assert "committed after version 1, of 20" in answer.out
    assert pulse("tag", "--root", eu, "--run", "math-1", "best", "--version", 0).code == 0
    push(eu, "math-1", 1)
    us.mkdir()  # made anew, or another one
    answer = pulse("promote", eu, "--from", us, "--runs", "math-1*", "--lost", "--json")
    [told] = answer.json["runs"]
    assert (answer.code, told["home"], told["error"]) == (3, eu.as_uri(), "NotFound")
    assert "to be fenced" in told["message"]
    us.rmdir()
    lost.rename(us)
    told = pulse("promote", eu, "--from", us, "--runs", "math-1", "--lost").out
    assert "committed after version 1, of 20" in told
    assert "newest version 2" in told
    again = pulse("promote", eu, "--from", us, "--runs", "math-1", "--lost", "--json")
    assert (again.code, again.json["runs"][0]["given_up"]) == (0, [2, 3, 4])
    assert pulse("tag", "--root", us, "--run", "math-1", "best", "--version", 0).code == 4
    assert pulse("pull", "--root", us, "--run", "math-1", "--out", us.parent / "looked-at").code == 0
