"""SIGKILL at every step of a pull: the folder is at the old or the new version, and the next pull clears up."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulse_registry.format.keyframe import INDEX_NAME
from tests.scenarios.soak import killed_pull
from tests.support.checkpoints import bits, held, surplus, version_of
from tests.support.command_line import Pulse, Run
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


class Killer:
    """A process that runs pulls and kills them."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", killed_pull.__name__]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def pull(self, step: int, *arguments: object) -> str:
        """Run a pull that dies at a step; 0: at none."""
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{step} {json.dumps(['pull', '--json', *map(str, arguments)])}\n")
        process.stdin.flush()
        while True:
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else "the process has gone"
            if not line.startswith("{"):
                return line.strip()


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    killer = Killer()
    yield killer
    killer.process.communicate(timeout=HANG_S)


# From (None: nothing) to, with what options.
PULLS = {
    "into a new folder": (None, 4, ()),
    "by patches": (1, 4, ()),
    "backwards": (4, 2, ()),
    "anew over the same version": (3, 3, ("--replace",)),
}


# Odd, so that both sides of calls are met; and each pull begins at another step.
@pytest.mark.parametrize("stride", [19, pytest.param(1, marks=pytest.mark.sweep)], ids=["some", "every"])
@pytest.mark.parametrize(("start", "end", "options"), PULLS.values(), ids=PULLS.keys())
def test_a_pull_that_is_killed_at_any_step_leaves_the_old_or_the_new_version(
    killer: Killer,
    run: Run,
    pulse: Pulse,
    tmp_path: Path,
    start: int | None,
    end: int,
    options: tuple[str, ...],
    stride: int,
) -> None:
    before, out = tmp_path / "before", tmp_path / "out"
    if start is not None:
        assert pulse("pull", "--out", before, "--version", start).code == 0
        shutil.copytree(before, out)
    arguments = ("--root", run.root, "--run", run.name, "--out", out, "--version", end, *options)
    word, _, steps = killer.pull(0, *arguments).partition(" ")
    assert word == "done"
    assert int(steps) > 30
    assert held(out) == bits(run.states[end])
    seen = set()
    first = 1 + 2 * [*PULLS.values()].index((start, end, options)) % stride
    last = int(steps)  # few come after the last file's replacement
    for step in sorted({*range(first, last + 1, stride), last}):
        shutil.rmtree(out)
        if start is not None:
            shutil.copytree(before, out)
        assert killer.pull(step, *arguments) == "killed", step
        found = version_of(out)
        assert found in {start, end}, step
        if found is not None:
            assert held(out) == bits(run.states[found]), step
        seen.add(found)
        # Without --replace: what the folder says must also be what its files hold.
        answer = pulse("pull", "--out", out, "--version", end, "--json")
        assert answer.code == 0, (step, answer)
        assert held(out) == bits(run.states[end]), step
        assert surplus(out) == set(), step
    assert seen == {start, end}


def test_a_pull_that_is_killed_leaves_other_files_of_the_folder_alone(
    killer: Killer, run: Run, pulse: Pulse, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("{}")
    assert killer.pull(20, "--root", run.root, "--run", run.name, "--out", out) == "killed"
    assert pulse("pull", "--out", out).code == 0
    assert (out / "config.json").read_text() == "{}"
    assert surplus(out) == {"config.json"}
    assert (out / INDEX_NAME).exists()
