"""A real W&B, offline, keeps what a registry's listener logs, and loses nothing of what others log to the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb

from pulse_registry.errors import InvalidArgument
from pulse_registry.integrations.figures import NAMES, PULL, PUSH, figures
from pulse_registry.integrations.wandb import WandbLog
from tests.engines.trackers.wandb_file import rows
from tests.engines.trackers.work import push_and_pull, train


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A run whose files lie in the test's folder."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    made = wandb.init(project="pulse", mode="offline", dir=tmp_path, settings=wandb.Settings(x_disable_stats=True))
    yield made
    made.finish()


@pytest.fixture
def logged(run: Any) -> Callable[[], list[dict[str, Any]]]:
    """What the run's file holds once it is finished: ours, and what is not W&B's own."""

    def read() -> list[dict[str, Any]]:
        folder = Path(run.dir).parent
        run.finish()
        wandb.teardown()  # the process that writes the file has ended, and with it what it was about to write
        return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows(folder)]

    return read


def test_each_push_and_pull_is_a_row(run: Any, logged: Callable[[], Any], tmp_path: Path) -> None:
    made = push_and_pull(tmp_path / "registry", WandbLog(commit=True))
    assert logged() == [figures(result) for result in made]


def test_rows_that_are_logged_by_step_are_all_kept(run: Any, logged: Callable[[], Any], tmp_path: Path) -> None:
    """Two results come between two rows: as rows of their own they would move the step past the trainer's."""
    for step in range(4):
        run.log({"loss": float(step)}, step=step)
        made = push_and_pull(tmp_path / f"registry-{step}", WandbLog(run, commit=False), versions=1)
    found = logged()
    assert [row["loss"] for row in found] == [0, 1, 2, 3]
    assert all({PUSH + name for name in NAMES} | {PULL + name for name in NAMES} <= row.keys() for row in found)
    assert found[3].items() >= (figures(made[0]) | figures(made[1])).items()


def test_without_a_run_nothing_is_begun() -> None:
    assert wandb.run is None
    with pytest.raises(InvalidArgument, match=r"wandb\.init"):
        WandbLog(commit=True)
    assert wandb.run is None


def test_a_trainer_and_the_callback_log_to_one_run(run: Any, logged: Callable[[], Any], tmp_path: Path) -> None:
    train(tmp_path, WandbLog(commit=True), "wandb")
    found = logged()
    assert [row["train/global_step"] for row in found if "train/loss" in row] == [1, 2, 3]
    assert [row[f"{PUSH}step"] for row in found if f"{PUSH}step" in row] == [0, 1, 2, 3]
