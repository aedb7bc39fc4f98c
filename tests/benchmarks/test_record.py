"""Recorded steps: the last versions of a run of the demo, as states to measure on."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.record import NotRecorded, record_steps
from benchmarks.states import load_states
from tests.support.installed import needs

needs("torch", "transformers", "accelerate", "gguf", "matplotlib")


@pytest.mark.slow
def test_the_last_versions_of_the_demo_become_states(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    found = CliRunner().invoke(
        app, ["record", str(folder), "--seed", "5", "--steps", "3", "--states", "3", "--model", "tiny"]
    )
    assert found.exit_code == 0, found.output
    assert "3 states: " in found.output
    assert sorted(path.name for path in folder.iterdir()) == [f"step-00{n}.safetensors" for n in (1, 2, 3)]
    states = load_states(folder)
    names = [tensor.name for tensor in states.tensors]
    assert len(names) == len(set(names))
    assert {tensor.dtype for tensor in states.tensors} == {"BF16"}
    assert all(states.changed(step) > 0 for step in range(2))
    tied = {"lm_head.weight", "model.embed_tokens.weight"}
    assert len(tied & set(names)) == 1, "the tied tensors count once"


def test_a_demo_that_failed_leaves_no_states_but_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.record.run_and_show", lambda settings, json_output: 1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(NotRecorded, match="the demo failed") as failed:
        record_steps(tmp_path / "states", 5, 1, 2, "tiny")
    assert not (tmp_path / "states").exists()
    (kept,) = tmp_path.glob("pulse-record-*")
    assert str(kept) in str(failed.value)
