"""The profile of a push and a pull: every kernel that they call is in it, and no time twice."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.profile import REST, Stopwatch
from pulse_kernels.cpu.backend import NumbaBackend


def spin(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Slow:
    """Two methods of a backend, one of which calls the other, and one that is none of a backend's."""

    def diff(self) -> None:
        spin(0.01)
        self.gather()

    def gather(self) -> None:
        spin(0.03)

    def other(self) -> None:
        spin(0.02)


def test_what_a_method_calls_is_not_its_own_time_and_the_class_is_left_as_it_was() -> None:
    plain, watch = dict(vars(Slow)), Stopwatch()
    with watch.over(Slow):
        slow = Slow()
        taken = watch.measured(lambda: (slow.diff(), slow.other()))
    assert set(taken) == {"diff", "gather", REST}
    assert taken["gather"] > taken["diff"]  # 30 ms of its own time, and 10
    assert sum(taken.values()) >= 0.06
    assert dict(vars(Slow)) == plain


@pytest.mark.slow
def test_the_command_tells_of_every_kernel(tmp_path: Path) -> None:
    method, out = NumbaBackend.class_select, tmp_path / "profile.json"
    result = CliRunner().invoke(app, ["profile", "--cells", "40000", "--repeats", "2", "--out", str(out)])
    assert result.exit_code == 0, result.output
    parts = {(part["coder"], part["call"], part["part"]) for part in json.loads(out.read_text())["parts"]}
    assert {
        ("class", "pull", "class_select"),
        ("class", "push", "class_ranks"),
        ("gap", "pull", "step_coded"),
    } <= parts
    assert ("gap", "pull", "class_select") not in parts
    assert {(coder, call, REST) for coder in ("gap", "class") for call in ("push", "pull")} <= parts
    assert NumbaBackend.class_select is method
