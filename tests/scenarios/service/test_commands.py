"""The command line over the service: the same commands, with a URL and a token."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import pulse_registry
from pulse_registry.cli import main
from pulse_registry.cli.exits import EXIT_CODES
from pulse_registry.errors import AccessDenied, InvalidArgument, NotFound
from tests.scenarios.service.policies import equal, policy
from tests.support.service import Service
from tests.support.waiting import HANG_S, until


@pytest.fixture
def pulse(file_service: Service, run: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Call a command on the service and return its exit code and what it printed."""
    monkeypatch.setenv("PULSE_TOKEN", file_service.token)

    def call(*arguments: str) -> tuple[int, str]:
        code = main([*arguments, "--root", file_service.url, "--run", run])
        return code, capsys.readouterr().out

    return call


@pytest.mark.slow
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
        *(
            ["log"],
            ["workers"],
            ["verify"],
            ["route"],
            ["gc"],
            ["tag"],
            ["compact"],
            ["pull", "--out", "x"],
            ["inspect", "key"],
        ),
        *(["export", "x"], ["import", "x"]),
    ):
        for said in ([], ["--allow-http"]):
            assert main([*command, *place, *said]) == EXIT_CODES[InvalidArgument]
    for said in ([], ["--allow-http"]):
        assert main(["doctor", *place[:2], *place[4:], *said]) == EXIT_CODES[InvalidArgument]
    assert asked == [False, True] * 12


@contextmanager
def following(service: Service, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command that follows; whoever is done interrupts it, and it ends as one that is done."""
    code = "import sys; from pulse_registry.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *arguments, "--follow", "--json", "--root", service.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(HANG_S) == 0
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


@pytest.mark.slow
def test_a_log_that_is_followed_goes_on_when_the_service_comes_back(
    own_service: Service, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_TOKEN", own_service.token)
    with pulse_registry.open(own_service.root, run=run) as trainer:
        trainer.push(0, policy(0))
        with following(own_service, "log", "--run", run) as process:
            assert line(process)["version"] == 0
            own_service.stop()
            trainer.push(1, policy(1))
            own_service.start()
            told = line(process)
    assert (told["version"], told["changed"]) == (1, 100)
    assert told["cells"] == sum(tensor.size for tensor in policy(1).values())


@pytest.mark.slow
def test_workers_are_listed_as_they_told_and_followed_until_they_are_gone(
    file_service: Service, run: str, pulse: Any
) -> None:
    with pulse_registry.open(file_service.root, run=run) as trainer:
        trainer.push(0, policy(0))
        code, printed = pulse("workers", "--json")
        assert (code, json.loads(printed)) == (0, [])
        assert pulse("workers") == (0, f"{run}: no worker has reported of late\n")
        with following(file_service, "workers", "--run", run) as process:
            with pulse_registry.open(file_service.url, run=run, token=file_service.token, name="w0") as worker:
                worker.pull("latest", into=policy(2))
                told = line(process)
                assert (told["worker"], told["version"], told["gone"]) == ("w0", 0, False)
                assert told["digest_matches"]
                trainer.push(1, policy(1))
                until(lambda: json.loads(pulse("workers", "--json")[1])[0]["staleness"] == 1)
                code, printed = pulse("workers")
                assert code == 0
                assert re.search(r"w0 +1 +0 +match +[0-9.]+ m?s", printed)
            told = line(process)  # that the run went on is no news of the worker
            assert (told["worker"], told["gone"]) == ("w0", True)


def test_workers_of_no_run_are_not_found(pulse: Any) -> None:
    assert pulse("workers")[0] == EXIT_CODES[NotFound]
    assert pulse("workers", "--follow")[0] == EXIT_CODES[NotFound]
