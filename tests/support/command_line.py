"""The command line called in this process, and a run that was pushed with it; conftests import the fixtures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pulse_registry.cli import main
from tests.support.checkpoints import Tensors, bf16_model, save, step_of


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Pulse = Callable[..., Answer]


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a few versions, and the tensors of each."""

    root: Path
    name: str
    states: list[Tensors]

    @property
    def folder(self) -> Path:
        return self.root / self.name


@pytest.fixture
def pulse(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Pulse:
    """Call the command line in this process; PULSE_ROOT and PULSE_RUN are not set."""
    monkeypatch.delenv("PULSE_ROOT", raising=False)
    monkeypatch.delenv("PULSE_RUN", raising=False)

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture
def run(tmp_path: Path, pulse: Pulse, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run with five versions, which PULSE_ROOT and PULSE_RUN name."""
    states = [bf16_model()]
    for number in range(1, 5):
        states.append(step_of(states[-1], number))
    monkeypatch.setenv("PULSE_ROOT", str(tmp_path / "registry"))
    monkeypatch.setenv("PULSE_RUN", "math")
    for number, state in enumerate(states):
        file = save(tmp_path / "trainer" / f"{number}.safetensors", state)
        answer = pulse("push", "--step", number * 10, "--json", file)
        assert answer.code == 0, answer
    return Run(tmp_path / "registry", "math", states)
