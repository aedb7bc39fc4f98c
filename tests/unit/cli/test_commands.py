"""Each command, as people and as scripts see it."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import pulse_registry
from tests.support.checkpoints import bf16_model, save, step_of
from tests.support.command_line import Pulse, Run
from tests.support.waiting import HANG_S

DIGITS = set("0123456789abcdef")


def test_push_says_what_it_stored(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    state = step_of(run.states[-1], 77)
    answer = pulse("push", "--step", 50, "--json", save(tmp_path / "next.safetensors", state))
    assert answer.code == 0
    assert list(answer.json) == ["version", "step", "kind", "changed", "cells", "bytes", "digest"]
    assert (answer.json["version"], answer.json["step"], answer.json["kind"]) == (5, 50, "patch")
    assert answer.json["cells"] == sum(t.size for t in state.values())
    assert 0 < answer.json["changed"] < answer.json["cells"]
    assert set(answer.json["digest"]) <= DIGITS
    text = pulse("push", "--step", 60, tmp_path / "next.safetensors")
    assert text.code == 0
    assert text.out.startswith("version 6 (step 60): patch of ")


def test_a_timeline_is_drawn_where_it_is_asked_for(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    file = save(tmp_path / "next.safetensors", step_of(run.states[-1], 78))
    answer = pulse("push", "--step", 50, "--timeline", "--json", file)
    assert [phase["phase"] for phase in answer.json["timeline"]][:2] == ["diff", "code"]
    assert {"phase", "start", "end", "busy", "nbytes"} == set(answer.json["timeline"][0])
    text = pulse("pull", "--out", tmp_path / "out", "--timeline")
    assert text.code == 0
    drawn = {line.split()[0]: line for line in text.out.splitlines() if "█" in line}
    assert list(drawn) == ["route", "fetch", "decode", "verify", "apply"]
    assert "█" not in pulse("pull", "--out", tmp_path / "other").out


@pytest.mark.parametrize("coder", ["gap", "class"])
def test_push_takes_the_coder_that_is_asked_for(pulse: Pulse, run: Run, tmp_path: Path, coder: str) -> None:
    file = save(tmp_path / "next.safetensors", step_of(run.states[-1], 5))
    assert pulse("push", "--step", 1, "--coder", coder, file).code == 0
    key = next(run.folder.glob("objects/patch/000000000004-*")).relative_to(run.folder)
    assert {group["coder"] for group in pulse("inspect", "--json", key).json["groups"]} == {coder}


def test_log_lists_all_versions_oldest_first(pulse: Pulse, run: Run) -> None:
    listed = pulse("log", "--json").json
    assert [entry["version"] for entry in listed] == [0, 1, 2, 3, 4]
    assert [entry["step"] for entry in listed] == [0, 10, 20, 30, 40]
    assert [entry["kind"] for entry in listed] == ["keyframe", *["patch"] * 4]
    fields = ["version", "step", "kind", "changed", "cells", "bytes", "created_at", "digest", "files"]
    assert all(list(entry) == fields for entry in listed)
    text = pulse("log")
    assert text.code == 0
    assert all(entry["digest"] in text.out for entry in listed)


def test_route_names_the_objects_of_a_pull(pulse: Pulse, run: Run) -> None:
    found = pulse("route", "--from", 2, "--json").json
    figures = ["bytes", "objects", "decoded", "cost", "object_cost", "cell_cost"]
    assert list(found) == ["version", "base", *figures, "legs", "instead"]
    assert (found["version"], found["base"]) == (4, 2)
    assert [(leg["kind"], leg["base"], leg["target"]) for leg in found["legs"]] == [("patch", 2, 3), ("patch", 3, 4)]
    assert found["bytes"] == sum(leg["bytes"] for leg in found["legs"])
    assert found["objects"] == sum(leg["objects"] for leg in found["legs"]) == 2
    assert found["cost"] == found["bytes"] + 2 * found["object_cost"] + found["cell_cost"] * found["decoded"] > 0
    fresh = pulse("route", "--to", 0, "--json").json
    assert [(leg["kind"], leg["base"]) for leg in fresh["legs"]] == [("keyframe", None)]
    assert pulse("route", "--from", "latest", "--json").json["legs"] == []
    assert pulse("route", "--from", 2).out.startswith("from version 2 to version 4: ")


def test_route_says_what_other_ways_would_have_cost(pulse: Pulse, run: Run) -> None:
    found = pulse("route", "--from", 2, "--json", "--object-cost", 1, "--cell-cost", 0).json
    assert (found["object_cost"], found["cell_cost"]) == (1, 0)
    chain, keyframe, direct = found["instead"]
    assert (chain["way"], chain["bytes"], chain["cost"]) == ("chain", found["bytes"], found["cost"])
    assert (keyframe["way"], direct) == (
        "keyframe",
        {"way": "direct", "bytes": None, "objects": None, "decoded": None, "cost": None},
    )
    assert keyframe["cost"] == keyframe["bytes"] + keyframe["objects"] >= found["cost"]
    text = pulse("route", "--from", 2, "--object-cost", 1, "--cell-cost", 0).out
    assert "version by version: is this one" in text
    assert "one direct patch: is not there" in text
    assert "times as much" in text
    assert [other["way"] for other in pulse("route", "--json").json["instead"]] == ["keyframe"]
    assert pulse("route", "--object-cost", -1).code == 2


def test_verify_checks_a_version(pulse: Pulse, run: Run) -> None:
    found = pulse("verify", "--version", 2, "--json").json
    assert (found["version"], found["verified"]) == (2, True)
    assert found["digest"] == pulse("log", "--json").json[2]["digest"]
    assert "version 4 is whole" in pulse("verify").out


def test_pull_says_what_it_fetched(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    found = pulse("pull", "--out", tmp_path / "out", "--version", 1, "--json").json
    assert list(found) == ["version", "digest", "bytes", "objects", "verified", "avoided", "files", "left_out", "kept"]
    assert (found["version"], found["verified"], found["avoided"]) == (1, True, [])
    assert found["bytes"] == pulse("route", "--to", 1, "--json").json["bytes"]
    again = pulse("pull", "--out", tmp_path / "out", "--version", 1, "--json").json
    assert (again["bytes"], again["objects"], again["verified"]) == (0, 0, True)
    assert "holds version 4, verified" in pulse("pull", "--out", tmp_path / "out").out


def test_the_run_is_named_by_options_too(pulse: Pulse, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULSE_ROOT")
    monkeypatch.delenv("PULSE_RUN")
    assert pulse("log").code == 2
    assert len(pulse("log", "--root", run.root, "--run", run.name, "--json").json) == 5


def test_inspect_says_what_every_object_of_a_run_is(pulse: Pulse, run: Run) -> None:
    types_seen = set()
    for path in sorted(run.folder.rglob("*")):
        if not path.is_file():
            continue
        key = str(path.relative_to(run.folder))
        of_key, of_file = pulse("inspect", "--json", key), pulse("inspect", "--json", path)
        assert of_key.code == of_file.code == 0, (key, of_key, of_file)
        assert of_key.json["size"] == path.stat().st_size
        types_seen.add(of_key.json["type"])
        assert pulse("inspect", key).out.startswith("object")
    assert types_seen == {"record", "head", "layout", "patch", "keyframe shard", "checkpoint index"}


def test_inspect_shows_a_patch_group_by_group(pulse: Pulse, run: Run) -> None:
    path = next(run.folder.glob("objects/patch/*"))
    found = pulse("inspect", "--json", path).json
    assert found["type"] == "patch"
    assert sum(group["changed"] for group in found["groups"]) == found["changed"]
    assert sum(group["bytes"] for group in found["groups"]) + found["head_size"] == found["size"]


def test_inspect_lists_the_tensors_of_a_file(pulse: Pulse, tmp_path: Path) -> None:
    file = save(tmp_path / "model.safetensors", bf16_model())
    tensors = pulse("inspect", "--json", file).json["tensors"]
    assert {"name": "norm.weight", "dtype": "BF16", "shape": [100], "cells": 100, "bytes": 200} in tensors


def test_json_errors_are_one_document_on_stdout(pulse: Pulse, run: Run) -> None:
    for arguments in (["verify", "--version", 99], ["pull"], ["push", "--step", "x", "y"], ["route", "--nonsense"]):
        answer = pulse(*arguments, "--json")
        assert list(answer.json) == ["error", "message"]
        assert answer.code in (2, 3)
        assert answer.err == ""


def test_errors_are_one_line_on_stderr(pulse: Pulse, run: Run) -> None:
    answer = pulse("verify", "--version", 99)
    assert (answer.code, answer.out) == (3, "")
    assert answer.err.count("\n") == 1
    assert answer.err.startswith("pulse: ")


def test_demo_passes_its_options_through(pulse: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def run_demo(**options: Any) -> int:
        asked.update(options)
        return 5

    stand_in = types.ModuleType("pulse_registry.demo")
    stand_in.run_demo = run_demo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pulse_registry.demo", stand_in)
    assert pulse("demo", "--steps", 3, "--model", "m", "--ranks", 2, "--root", "r", "--out", "o", "--json").code == 5
    assert asked == {"steps": 3, "model": "m", "ranks": 2, "root": "r", "out": Path("o"), "json_output": True}


def test_demo_names_the_extra_that_is_missing(pulse: Pulse, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_demo(**_: Any) -> int:
        raise ModuleNotFoundError("No module named 'gguf'", name="gguf")

    stand_in = types.ModuleType("pulse_registry.demo")
    stand_in.run_demo = run_demo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pulse_registry.demo", stand_in)
    answer = pulse("demo")
    assert answer.code == 2
    assert "pip install 'pulse-registry[demo]'" in answer.err


@pytest.mark.slow
def test_help_loads_nothing_heavy_and_names_the_exit_codes(tmp_path: Path) -> None:
    code = (
        "import sys, pulse_registry.cli as cli\n"
        "code = cli.main(['--help'])\n"
        "print(code, sorted({'numba', 'torch', 'transformers', 'pulse_registry.demo'} & set(sys.modules)))"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert "7  unavailable" in done.stdout


@pytest.mark.slow
def test_the_script_runs(run: Run, tmp_path: Path) -> None:
    script = Path(sys.executable).parent / "pulse"
    done = subprocess.run([script, "log", "--json"], capture_output=True, text=True, timeout=HANG_S, check=True)
    assert len(json.loads(done.stdout)) == 5
    failed = subprocess.run(
        [script, "verify", "--version", "9"], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert failed.returncode == 3
    assert "Traceback" not in failed.stderr


def test_the_command_line_and_the_library_see_the_same_run(pulse: Pulse, run: Run) -> None:
    with pulse_registry.open(str(run.root), run=run.name, create=False) as registry:
        assert [v.digest for v in registry.versions()] == [e["digest"] for e in pulse("log", "--json").json]
