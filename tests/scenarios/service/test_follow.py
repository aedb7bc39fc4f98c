"""``pulse follow`` as a process: it brings engines to a run, tells the service, and leaves none paused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import pulse_registry
from tests.support.checkpoints import Tensors, bf16_model, bits, held, step_of, version_of
from tests.support.engines import VllmStub, engine_at
from tests.support.servers import launched
from tests.support.service import pulse_serve
from tests.support.waiting import HANG_S, until

RUN = "math"


def states() -> list[Tensors]:
    states = [bf16_model(cells=3000)]
    for step in range(3):
        states.append(step_of(states[-1], step))
    return states


@pytest.fixture
def root(tmp_path: Path) -> str:
    root = str(tmp_path / "registry")
    push(root, states()[:2])
    return root


def push(root: str, states: list[Tensors]) -> None:
    with pulse_registry.open(root, run=RUN) as trainer:
        for state in states:
            trainer.push(0, state)


@contextmanager
def following(root: str, *options: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    pulse = str(Path(sys.executable).with_name("pulse"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PULSE_")}
    command = launched([pulse, "follow", "--root", root, "--run", RUN, "--json", *options])
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.slow
def test_an_engine_follows_and_the_service_tells_a_router_which_version_it_serves(root: str, tmp_path: Path) -> None:
    stub, log = VllmStub(), tmp_path / "follow.log"
    with (
        pulse_serve(root, tmp_path, "--insecure-open", environment={"PULSE_POLL_SECONDS": "0.05"}) as service,
        engine_at(stub) as engine,
        following(service.url, "--engine", f"vllm={engine.url}", "--name", "engine-0", log=log) as process,
    ):
        serving: Callable[[int], list[Any]] = lambda version: httpx.get(  # noqa: E731
            f"{service.url}/v1/runs/{RUN}/workers", params={"min_version": version}, timeout=HANG_S
        ).json()["workers"]
        until(lambda: [worker["worker"] for worker in serving(1)] == ["engine-0"])
        assert serving(2) == []
        push(root, states()[2:])
        until(lambda: serving(3))
        (worker,) = serving(0)
        assert (worker["version"], worker["digest_matches"], worker["staleness"]) == (3, True, 0)
        assert sorted(worker["phases"]) == ["pause", "stage"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0
        assert serving(0) == []  # it told that it goes
    assert (stub.held, stub.told, stub.paused) == (3, "3", False)
    assert stub.bodies["/init_weight_transfer_engine"]["init_info"]["url"] == service.url
    changes = lines(log)
    assert changes[0]["before"] == 0
    assert changes[-1]["version"] == 3
    assert all(change["changed"] for change in changes)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_pause_ends_it_after_the_engine_goes_on(root: str, tmp_path: Path, how: int) -> None:
    stub, log = VllmStub(), tmp_path / "follow.log"
    with engine_at(stub) as engine, following(root, "--engine", f"vllm={engine.url}", log=log) as process:
        stub.when_paused = lambda: process.send_signal(how)
        assert process.wait(HANG_S) == 0, log.read_text()
    assert stub.calls[-1] == "/resume"
    assert (stub.held, stub.told, stub.paused) == (1, "1", False)
    (change,) = lines(log)
    assert (change["version"], change["engine"]) == (1, f"vllm {engine.url}")


@pytest.mark.slow
def test_a_signal_while_a_version_is_staged_ends_it_at_once(root: str, tmp_path: Path) -> None:
    stub, log = VllmStub(), tmp_path / "follow.log"

    with engine_at(stub) as engine, following(root, "--engine", f"vllm={engine.url}", log=log) as process:
        stub.when_asked_ready = lambda: (process.send_signal(signal.SIGTERM), 1000)[1]
        assert process.wait(HANG_S) == 0, log.read_text()
    assert "/pause" not in stub.calls
    assert lines(log) == []


@pytest.mark.slow
def test_a_folder_follows_a_run_and_a_command_is_called_once_it_holds_a_version(root: str, tmp_path: Path) -> None:
    out, notes, log = tmp_path / "out", tmp_path / "notes", tmp_path / "follow.log"
    command = f"sh -c 'echo $PULSE_VERSION $PULSE_FOLDER >> {notes}'"
    with following(root, "--engine", f"dir={out}", "--exec", command, log=log) as process:
        until(lambda: notes.exists() and notes.read_text().endswith("\n"))
        assert held(out) == bits(states()[1])
        push(root, states()[2:])
        until(lambda: f"3 {out}\n" in notes.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0
    assert (version_of(out), held(out)) == (3, bits(states()[3]))
    assert notes.read_text().startswith(f"1 {out}\n")
