"""``pulse verify --all`` and ``pulse doctor --run``, as people and as scripts see them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from pulse_registry.format import keys
from tests.support.checkpoints import save, step_of
from tests.support.command_line import Pulse, Run


@pytest.fixture
def copy(run: Run, tmp_path: Path) -> Path:
    """A copy of the run's root."""
    shutil.copytree(run.root, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_whole_copy_is_checked_without_being_the_registry_that_the_environment_names(
    pulse: Pulse, run: Run, copy: Path
) -> None:
    shutil.rmtree(run.root)
    answer = pulse("verify", "--all", copy)
    assert answer.code == 0, answer
    (line,) = [line for line in answer.out.splitlines() if line.split()[:1] == ["math"]]
    assert line.split()[1:3] == ["10", "5"]
    assert line.rstrip().endswith("whole")
    found = pulse("verify", "--all", copy, "--json").json
    assert list(found) == ["root", "whole", "runs"]
    (one,) = found["runs"]
    assert list(one) == ["run", "whole", "records", "versions", "objects", "bytes", "defects"]
    assert (found["whole"], one["whole"], one["defects"]) == (True, True, [])


def test_what_a_copy_lacks_is_named_and_the_exit_code_says_that_there_is_something(
    pulse: Pulse, run: Run, copy: Path
) -> None:
    patch = next(copy.glob("math/objects/patch/*"))
    patch.unlink()
    answer = pulse("verify", "--all", copy)
    assert answer.code == 6
    assert "1 defect\n" in re.sub(" +\n", "\n", answer.out)
    assert f"{patch.relative_to(copy)}: missing: it is not there" in answer.out
    found = pulse("verify", "--all", copy, "--json")
    assert (found.code, found.json["whole"]) == (6, False)
    (defect,) = found.json["runs"][0]["defects"]
    assert list(defect) == ["key", "kind", "found", "remedy"]
    assert (defect["key"], defect["kind"]) == (str(patch.relative_to(copy / "math")), "missing")


def test_a_copy_is_checked_against_pinned_keys_and_nothing_is_remembered_of_it(
    pulse: Pulse, run: Run, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_STATE_DIR", str(tmp_path / "seen"))
    public = pulse("key", "new", "--out", tmp_path / "trainer.pem", "--json").json["public"]
    answer = pulse("verify", "--all", copy, "--trust", public)
    assert answer.code == 10
    assert "is not signed" in answer.out
    assert not (tmp_path / "seen").exists()


def test_a_root_without_runs_is_not_found_and_verify_wants_to_know_what_to_check(pulse: Pulse, tmp_path: Path) -> None:
    assert pulse("verify", "--all", tmp_path).code == 3
    assert pulse("verify", "--all", "https://pulse.example.com").code == 2
    answer = pulse("verify")
    assert answer.code == 2
    assert "give --root and --run, or --all" in answer.err


def test_doctor_says_what_a_run_lacks_and_what_restores_it_and_writes_nothing(pulse: Pulse, run: Run) -> None:
    assert pulse("doctor", "--run", "math").code == 0
    record = run.folder / keys.record_key(6)
    kept = record.read_bytes()
    record.unlink()
    before = sorted(run.root.rglob("*"))
    answer = pulse("doctor", "--run", "math")
    assert answer.code == 6
    assert "record 6 is missing, and record 7 is there" in answer.out
    assert "The right record 6 has the BLAKE3" in answer.out
    (defect,) = pulse("doctor", "--run", "math", "--json").json["defects"]
    assert (defect["key"], defect["kind"]) == (keys.record_key(6), "missing")
    assert sorted(run.root.rglob("*")) == before
    record.write_bytes(kept)
    assert pulse("doctor", "--run", "math").code == 0


def test_doctor_knows_a_run_that_is_not_there(pulse: Pulse, run: Run) -> None:
    assert pulse("doctor", "--run", "physics").code == 3
    assert pulse("doctor", "--run", "../math").code == 2
    assert pulse("doctor", "--run", "math", "--root", "https://pulse.example.com").code == 2


def test_a_hole_in_the_log_is_told_by_readers_and_keeps_writers_out_until_it_is_mended(
    pulse: Pulse, run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = run.folder / keys.record_key(6)
    kept = record.read_bytes()
    record.unlink()
    assert len(pulse("log", "--json").json) == 3
    assert "record 6 is missing" in caplog.text
    file = save(tmp_path / "next.safetensors", step_of(run.states[-1], 9))
    for command in (("push", "--step", 50, file), ("tag", "best", "--version", 1)):
        answer = pulse(*command)
        assert answer.code == 6, answer
        assert "record 6 is missing: the log ends at record 5, and record 7 is there" in answer.err
    assert not record.exists()
    record.write_bytes(kept)
    assert pulse("push", "--step", 50, file).code == 0
    assert len(pulse("log", "--json").json) == 6
