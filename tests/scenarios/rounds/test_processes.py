"""Trainers in outer rounds as real processes: of three backends, stopped, killed; over files and a real S3 server."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pulse_registry.options import ComputeOptions, Options
from pulse_registry.outer.log import FOLDER
from pulse_registry.registry import Registry
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.runtime.outer import OuterRun
from pulse_registry.runtime.runtime import Runtime
from pulse_registry.store import open_store
from tests.scenarios.rounds import trainer
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
_MORE = 20
"""Rounds from the newest to the last: before it, each trainer has read which one that is."""
Line = dict[str, Any]


class Team:
    """Trainers at one root, and what they have said.

    Attributes:
        said: by each, in order.
    """

    def __init__(self, root: str, **given: Any) -> None:
        self.root, self._given = root, {"loops": "numba", "quorum": 2, "grace": 0.5} | given
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.said: dict[str, list[Line]] = {}
        self._lines: queue.Queue[Line] = queue.Queue()
        self._threads: list[threading.Thread] = []
        self._every: list[subprocess.Popen[str]] = []

    def start(self, name: str, seed: int, **given: Any) -> subprocess.Popen[str]:
        """Start a trainer."""
        said = json.dumps({"root": self.root, "name": name, "seed": seed} | self._given | given)
        process = subprocess.Popen(
            [sys.executable, "-m", trainer.__name__, said],
            cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.processes[name] = process
        self._every.append(process)
        self._threads.append(threading.Thread(target=self._listen, args=(process,)))
        self._threads[-1].start()
        return process

    def until(self, found: Any) -> Line:
        """Return the next line of which something is true."""
        while True:
            try:
                line = self._lines.get(timeout=HANG_S)
            except queue.Empty:
                raise AssertionError(f"nobody says so: {[lines[-1] for lines in self.said.values()]}") from None
            self.said.setdefault(line["name"], []).append(line)
            if found(line):
                return line

    def stop(self) -> None:
        """Let all stop after the same round, and look at what they hold."""
        living = {name for name, process in self.processes.items() if process.poll() is None}
        for name in living:  # a fast machine makes many rounds while somebody is told, and while lines are read
            self.processes[name].send_signal(signal.SIGSTOP)
        with contextlib.suppress(queue.Empty):
            while True:
                line = self._lines.get(timeout=1)
                self.said.setdefault(line["name"], []).append(line)
        newest = max(line.get("round", 0) for lines in self.said.values() for line in lines)
        for name in living:
            pipe = self.processes[name].stdin
            assert pipe is not None
            pipe.write(f"{newest + _MORE}\n")
            pipe.close()
        for name in living:
            self.processes[name].send_signal(signal.SIGCONT)
        left = set[str]()
        while left < living:
            line = self.until(lambda line: "left" in line)
            assert line["conserved"], line["name"]
            left.add(line["name"])
        for name in living:
            assert self.processes[name].wait(HANG_S) == 0, name
        self.same()

    def same(self) -> int:
        """Assert that all have held the same bits after each round; return how many rounds there were."""
        held: dict[int, set[tuple[str, ...]]] = {}
        for lines in self.said.values():
            for line in lines:
                if "round" in line:
                    held.setdefault(line["round"], set()).add((line["theta"], line["momentum"], line["digest"]))
        assert all(len(found) == 1 for found in held.values())
        return len(held)

    def end(self) -> None:
        for process in self._every:
            process.kill()
            process.wait()
        for thread in self._threads:
            thread.join()  # each has read to the end
        for process in self._every:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(json.loads(line))


@pytest.fixture
def teams() -> Iterator[list[Team]]:
    made: list[Team] = []
    yield made
    for team in made:
        team.end()


def registry_at(root: str) -> Registry:
    return Registry(open_store(root), "run", Options(compute=ComputeOptions(backend="reference")))


@contextmanager
def rounds_at(root: str) -> Iterator[OuterRun]:
    runtime = Runtime(open_store(root), "run", Options(), Dependencies())
    yield OuterRun(runtime)
    runtime.end()


def verify(root: str, rounds: int) -> None:
    """Fold the bucket: each round's version is what its contributions come to."""
    with registry_at(root) as registry, rounds_at(root) as run:
        replayed = list(run.replay())
        assert len(replayed) >= rounds
        for one in replayed:
            assert registry.version(one.version).digest == one.digest, one


@pytest.mark.parametrize("rounds", [25, pytest.param(50, marks=pytest.mark.sweep)])
def test_four_processes_of_three_backends_hold_the_same_bits_round_after_round(
    tmp_path: Path, teams: list[Team], rounds: int
) -> None:
    team = Team(f"file://{tmp_path}/root", quorum=4, grace=3600.0)
    teams.append(team)
    for seed, (name, loops) in enumerate(zip("abcd", ["reference", "numba", "triton", "numba"], strict=True), 1):
        team.start(name, seed, loops=loops, dump=str(tmp_path / f"{name}.npy"))
    team.until(lambda line: line.get("round") == rounds - _MORE)
    team.stop()
    assert team.same() >= rounds
    for lines in team.said.values():
        assert len([line for line in lines if "round" in line]) >= rounds
    verify(team.root, rounds)
    values = [np.load(tmp_path / f"{name}.npy") for name in "abcd"]
    forwards, backwards = (((one[0] + one[1]) + one[2]) + one[3] for one in (values, values[::-1]))
    assert (forwards.view(np.uint32) != backwards.view(np.uint32)).any()  # plain float32 sums depend on their order


def test_what_a_stopped_trainer_has_learnt_arrives_once_it_goes_on(seaweedfs_url: str, teams: list[Team]) -> None:
    team = Team(seaweedfs_url, quorum=3, grace=0.5)
    teams.append(team)
    for seed, name in enumerate("abcd", 1):
        team.start(name, seed)
    team.until(lambda line: line["name"] == "d" and line.get("round", 0) >= 2)
    stopped = team.processes["d"]
    stopped.send_signal(signal.SIGSTOP)
    first = team.until(lambda line: line["name"] == "a" and line.get("late") == ["d"])["round"]
    team.until(lambda line: line["name"] == "a" and line.get("round", 0) >= first + 4)
    stopped.send_signal(signal.SIGCONT)
    back = team.until(lambda line: line["name"] == "d" and line.get("round", 0) > first + 4 and line["counts"])
    assert "d" in back["members"]
    team.stop()
    verify(team.root, back["round"])
    assert sent_by(team.root, "d") == team.said["d"][-1]["sent"]


def sent_by(root: str, member: str) -> list[int]:
    """Add up exactly what counts of a member's contributions, as the bucket has it."""
    from pulse_kernels import get_backend
    from pulse_registry.format.contribution import Contribution
    from pulse_registry.weights.arrays import Weights
    from pulse_registry.weights.cell_space import Geometry
    from pulse_registry.weights.model import layout_of, read_model

    with registry_at(root) as registry, rounds_at(root) as run:
        state = run.log(whole=True).refresh()
        total = [0] * sum(int(np.prod(shape)) for shape in trainer.SHAPES.values())
        for closed in state.closed:
            record = closed.contributions.get(member)
            if record is None or record.object is None:
                continue
            views = read_model(registry.load(closed.number - 1, framework="numpy"))
            cells = Weights.of(Geometry(layout_of(views, "keep")), views)
            data = open_store(root).get(f"run/{FOLDER}/{record.object.key}")
            found = Contribution.parse(record.object, cells.geometry, data)
            for number in found.entries:
                group = cells.geometry.groups[number]
                index, levels = found.decode(get_backend("reference"), group, [cells.copy_of(group)])
                for place, level in zip(index.tolist(), levels.tolist(), strict=True):
                    total[group.start + place] += level << record.exponent + 173
    return total


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.sweep)], ids=["some", "more"])
def test_trainers_that_are_killed_anywhere_leave_the_others_at_work_and_come_back(
    tmp_path: Path, teams: list[Team], every: bool
) -> None:
    team = Team(f"file://{tmp_path}/root", quorum=2, grace=0.5)
    teams.append(team)
    for seed, name in enumerate("bc", 1):
        team.start(name, seed)
    team.until(lambda line: line.get("round", 0) >= 1)
    for number, at in enumerate((9, 23, 31, 38, 47, 60, 81, 120) if every else (9, 38, 81)):
        killed = team.start("a", 10 + number, kill=at)
        assert killed.wait(HANG_S) == -signal.SIGKILL, at
        newest = max(line.get("round", 0) for lines in team.said.values() for line in lines)
        team.until(lambda line, newest=newest: line["name"] == "b" and line.get("round", 0) >= newest + 2)
    team.start("a", 99)
    team.until(lambda line: line["name"] == "a" and line.get("counts"))
    team.stop()
    verify(team.root, 10)
