"""The judgement of a run: what each process told is compared, and of a run with ranks, what each rank holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pulse_registry
from pulse_registry.demo.board import Board
from pulse_registry.demo.messages import Checked, Event, Published, Pulled, Role, Sharded, Trained
from pulse_registry.demo.report import make_report
from pulse_registry.demo.settings import Settings
from pulse_registry.demo.source import Source
from pulse_registry.demo.verdict import judge

VERSION = Published(0, 0, "keyframe", 8, 8, 16, 16, "", {}, "whole", ("first", "second"))
SHARDS = [
    Sharded("trainer-0", 0, 2, 4, 8), Sharded("trainer-1", 1, 2, 4, 8),
    Sharded("sharded-0", 0, 2, 5, 10), Sharded("sharded-1", 1, 2, 5, 10),
]  # fmt: skip


def pulled(worker: str, sha256: str, checked: str = "state") -> Pulled:
    roles: dict[str, Role] = {"sharded-0": "sharded", "sharded-1": "sharded", "late-joiner": "late"}
    return Pulled(worker, roles.get(worker, "rollout"), None, 0, 16, 1, 8, {}, checked, sha256)


def told(settings: Settings, digest: str, shards: list[Sharded], changes: dict[str, Pulled]) -> Board:
    board = Board(settings)
    events: list[Event] = [*shards, dataclasses.replace(VERSION, digest=digest)]
    held = dict(zip(settings.sharded_names, VERSION.slices, strict=False))
    for name in settings.worker_names:
        pull = changes.get(name, pulled(name, held.get(name, "whole")))
        events += [pull, Checked(name, 0, pull.sha256)]
    for event in (*events, Trained(0)):
        board.add(event)
    return board


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, str]:
    """A run of one version in a store, and that version's digest."""
    folder = tmp_path_factory.mktemp("run")
    with pulse_registry.open(str(folder), run="demo") as registry:
        digest = registry.push(0, {"w": np.arange(8, dtype=np.float32)}).digest
    settings = Settings(Source("tiny", "tiny"), 0, str(folder), "demo", Path(folder), ranks=2, late_after=0)
    return settings, digest


def test_ranks_that_hold_the_trainers_cells_pass(run: tuple[Settings, str]) -> None:
    board = told(*run, SHARDS, {})
    assert judge(board).problems == ()
    report = make_report(board, judge(board))
    assert report["format"] == 2
    assert report["totals"]["pulled_bytes_full"] == 4 * 16 + 2 * 10
    assert [rank["process"] for rank in report["ranks"]] == ["trainer-0", "trainer-1", "sharded-0", "sharded-1"]


@pytest.mark.parametrize(
    ("shards", "change", "said"),
    [
        (SHARDS, pulled("sharded-1", "first"), "sharded-1 holds version 0 at the end, and its cells are not"),
        (SHARDS, pulled("sharded-0", "whole"), "sharded-0 pulled version 0, and its cells are not the trainer's"),
        (SHARDS, pulled("rollout-1", "first"), "rollout-1 pulled version 0, and its cells are not the trainer's"),
        (SHARDS, pulled("sharded-0", "first", "slices"), "sharded-0 pulled version 0, and all ranks' cells were not"),
        ([*SHARDS[1:], Sharded("trainer-0", 0, 2, 3, 6)], None, "the trainer's ranks hold [3, 4] cells, and all are 8"),
        (SHARDS[:-1], None, "sharded-1: it is not known what they hold"),
    ],
)
def test_what_is_wrong_with_a_rank_is_told(
    run: tuple[Settings, str], shards: list[Sharded], change: Pulled | None, said: str
) -> None:
    changes = {} if change is None else {change.worker: change}
    assert any(problem.startswith(said) for problem in judge(told(*run, shards, changes)).problems)


def test_the_report_of_a_trainer_alone_has_the_names_that_it_always_had(run: tuple[Settings, str]) -> None:
    settings, digest = run
    board = told(dataclasses.replace(settings, ranks=1), digest, [], {})
    verdict = judge(board)
    assert verdict.problems == ()
    report: dict[str, Any] = make_report(board, verdict)
    assert report["format"] == 1
    assert set(report) == {
        "format", "ok", "model", "parameters", "full_bytes", "root", "run", "seed", "steps", "completions_per_step",
        "learning_rate", "seconds", "versions", "workers", "staleness", "totals", "checks",
    }  # fmt: skip
    assert set(report["versions"][0]) == {
        "version", "step", "kind", "changed", "cells", "nbytes", "full_nbytes", "digest", "phases", "sha256",
        "changed_percent", "smaller", "committed_at", "training",
    }  # fmt: skip
    assert set(report["workers"][0]["pulls"][0]) == {
        "at", "before", "version", "nbytes", "objects", "changed", "phases", "sha256", "equal",
    }  # fmt: skip
