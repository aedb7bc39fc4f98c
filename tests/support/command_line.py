"""The command line called in this process, and a run that was pushed with it; conftests import the fixtures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pulse_registry.cli import main
from pulse_registry.cli.app import app
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


@pytest.fixture(scope="session")
def pushed_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Tensors]]:
    """A registry of the run, pushed with the command line once for all tests, which copy it; and its states."""
    folder = tmp_path_factory.mktemp("pushed")
    states = [bf16_model()]
    for number in range(1, 5):
        states.append(step_of(states[-1], number))
    for number, state in enumerate(states):
        file = save(folder / "trainer" / f"{number}.safetensors", state)
        place = ["--root", str(folder / "registry"), "--run", "math"]
        with redirect_stdout(StringIO()):
            assert main(["push", "--step", str(number * 10), "--json", *place, str(file)]) == 0
    return folder, states


@pytest.fixture
def run(tmp_path: Path, pulse: Pulse, pushed_run: tuple[Path, list[Tensors]], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run with five versions, which PULSE_ROOT and PULSE_RUN name from here on; the folder ``trainer`` was pushed."""
    folder, states = pushed_run
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("PULSE_ROOT", str(tmp_path / "registry"))
    monkeypatch.setenv("PULSE_RUN", "math")
    return Run(tmp_path / "registry", "math", [dict(state) for state in states])


def options_of(command: list[str], environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what a command makes of its options and of the variables that it finds, without running it."""
    program, *words = command
    assert program == "pulse"
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    return parse(words)


def parse(words: list[str]) -> dict[str, Any]:
    """Return what a command, of which ``words`` are what follows ``pulse``, makes of its options; it does not run."""
    command: Any = get_command(app)
    name, arguments = "pulse", words
    while hasattr(command, "commands"):
        name, *arguments = arguments
        command = command.commands[name]
    with command.make_context(name, arguments) as context:
        values: dict[str, Any] = context.params
    return values
