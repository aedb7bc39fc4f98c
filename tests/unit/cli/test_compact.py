"""``pulse compact``: once, and as a process that follows a run until it is told to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import Pulse, Run
from tests.support.waiting import HANG_S


def test_it_attaches_what_is_missing_and_says_so(pulse: Pulse, run: Run) -> None:
    answer = pulse("compact", "--keyframe-every", 4, "--json")
    assert answer.code == 0
    assert [(made["kind"], made["base"], made["target"]) for made in answer.json["made"]] == [
        ("patch", 0, 4),
        ("keyframe", None, 4),
    ]
    assert answer.json["bytes"] == sum(made["nbytes"] for made in answer.json["made"])
    assert answer.json["left"] == []
    assert len(list(run.folder.glob("objects/patch/000000000000-000000000004-*"))) == 1
    again = pulse("compact")
    assert (again.code, again.out) == (0, "0 objects attached, 0 B\n")


def test_what_could_not_be_made_is_named(pulse: Pulse, run: Run) -> None:
    next(run.folder.glob("objects/patch/000000000001-*")).write_bytes(b"")
    answer = pulse("compact")
    assert answer.code == 6
    assert "not made: the patch 0 -> 4" in answer.out
    assert "objects/patch/000000000001-" in answer.err


FULL = """
import os, resource, sys
from pulse_registry.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, 1 << 12))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_spool_that_is_full_ends_with_the_exit_code_of_its_error(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, "compact", "--json", "--spool", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 7, done.stderr
    document = json.loads(done.stdout)
    assert (document["error"], document["made"], document["left"]) == ("StoreUnavailable", [], ["the patch 0 -> 4"])
    assert str(tmp_path) in document["message"]
    assert pulse("compact", "--json").json["left"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keyframe-every", 0], "keyframe_every"),
        (["--spool", "no"], "no folder"),
    ],
)
def test_options_out_of_range_are_refused(pulse: Pulse, run: Run, arguments: list[object], message: str) -> None:
    answer = pulse("compact", *arguments)
    assert answer.code == 2
    assert message in answer.err


@pytest.mark.slow
def test_a_process_that_follows_a_run_ends_when_it_is_told_to(run: Run) -> None:
    code = "import sys; from pulse_registry.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "compact", "--follow", "--poll-seconds", "0.05", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ.copy()) as process:
        try:
            assert process.stdout is not None
            made = json.loads(process.stdout.readline())
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == 0
        finally:
            process.kill()
    assert (made["kind"], made["base"], made["target"]) == ("patch", 0, 4)
