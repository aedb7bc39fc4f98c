"""The command line over the service: the same commands, with a URL and a token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pulse_registry.cli import main
from pulse_registry.cli.exits import EXIT_CODES
from pulse_registry.errors import AccessDenied, InvalidArgument, NotFound
from tests.scenarios.service.policies import equal, policy
from tests.support.service import Service


@pytest.fixture
def pulse(file_service: Service, run: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Call a command on the service and return its exit code and what it printed."""
    monkeypatch.setenv("PULSE_TOKEN", file_service.token)

    def call(*arguments: str) -> tuple[int, str]:
        code = main([*arguments, "--root", file_service.url, "--run", run])
        return code, capsys.readouterr().out

    return call


def test_a_checkpoint_goes_through_the_service_and_comes_back(pulse: Any, tmp_path: Path) -> None:
    for number in range(3):
        save_file(policy(number), tmp_path / f"{number}.safetensors")
        code, _ = pulse("push", str(tmp_path / f"{number}.safetensors"), "--step", str(number), "--dtype", "keep")
        assert code == 0
    out = tmp_path / "out"
    for version in (0, 2, 1):
        assert pulse("pull", "--out", str(out), "--version", str(version))[0] == 0
        index = json.loads((out / "model.safetensors.index.json").read_text())
        found = {name: load_file(out / file)[name] for name, file in index["weight_map"].items()}
        assert equal({name: np.asarray(cells) for name, cells in found.items()}, policy(version))
    code, printed = pulse("log", "--json")
    assert [(v["version"], v["kind"]) for v in json.loads(printed)] == [(0, "keyframe"), (1, "patch"), (2, "patch")]
    code, printed = pulse("route", "--from", "0", "--json")
    assert (code, [leg["kind"] for leg in json.loads(printed)["legs"]]) == (0, ["patch", "patch"])
    assert pulse("verify")[0] == 0
    code, printed = pulse("inspect", "log/000000000001.json", "--json")
    assert (code, json.loads(printed)["type"]) == (0, "record")


def test_a_token_that_does_not_allow_it_has_an_exit_code_of_its_own(pulse: Any, tmp_path: Path) -> None:
    assert pulse("log", "--token", "pulse_000000000000_wrong")[0] == EXIT_CODES[AccessDenied] == 8
    assert pulse("log")[0] == EXIT_CODES[NotFound]


def test_a_command_sends_no_token_in_clear_unless_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def refuse(url: str, token: str, *, allow_http: bool) -> None:
        asked.append(allow_http)
        raise InvalidArgument("refused")  # before anything is sent

    monkeypatch.setattr("pulse_registry.client.api.check_token", refuse)
    place = ("--root", "http://pulse.example.com", "--run", "run", "--token", "token")
    for command in (
        *(["log"], ["verify"], ["route"], ["gc"], ["tag"], ["compact"], ["pull", "--out", "x"], ["inspect", "key"]),
        *(["export", "x"], ["import", "x"]),
    ):
        for said in ([], ["--allow-http"]):
            assert main([*command, *place, *said]) == EXIT_CODES[InvalidArgument]
    for said in ([], ["--allow-http"]):
        assert main(["doctor", *place[:2], *place[4:], *said]) == EXIT_CODES[InvalidArgument]
    assert asked == [False, True] * 11


def test_a_log_that_is_followed_prints_versions_as_they_come(
    file_service: Service, run: str, pulse: Any, tmp_path: Path
) -> None:
    save_file(policy(0), tmp_path / "0.safetensors")
    assert pulse("push", str(tmp_path / "0.safetensors"), "--step", "0", "--dtype", "keep")[0] == 0
    arguments = ["log", "--follow", "--json", "--root", file_service.url, "--run", run]
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; from pulse_registry.cli import main; sys.exit(main())", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    ) as process:
        assert process.stdout is not None
        try:
            assert json.loads(process.stdout.readline())["version"] == 0
            save_file(policy(1), tmp_path / "1.safetensors")
            assert pulse("push", str(tmp_path / "1.safetensors"), "--step", "1", "--dtype", "keep")[0] == 0
            assert json.loads(process.stdout.readline())["changed"] == 100
        finally:
            process.kill()
