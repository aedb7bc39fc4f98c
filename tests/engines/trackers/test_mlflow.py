"""A real MLflow keeps what a registry's listener logs, in plain loops and with a Trainer that logs to the same run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest

from pulse_registry.errors import InvalidArgument
from pulse_registry.integrations.figures import NAMES, PUSH, figures
from pulse_registry.integrations.mlflow import MlflowLog
from tests.engines.trackers.work import push_and_pull, train


@pytest.fixture(autouse=True)
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A store of its own, in files: it needs no database."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield
    while mlflow.active_run() is not None:
        mlflow.end_run()


def history(run_id: str, name: str) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in mlflow.MlflowClient().get_metric_history(run_id, name)]


@pytest.mark.parametrize("given", [False, True])
def test_each_figure_is_kept_at_its_version(tmp_path: Path, given: bool) -> None:
    with mlflow.start_run() as run:
        listener = MlflowLog(None if not given else run.info.run_id)
    made = push_and_pull(tmp_path / "registry", listener)  # the run may have ended, and the thread be another one
    names = {name for result in made for name in figures(result)}
    assert len(names) == 2 * len(NAMES)
    for name in names:
        told = [(result.version, figures(result)[name]) for result in made if name in figures(result)]
        assert history(run.info.run_id, name) == told
    assert mlflow.MlflowClient().get_run(run.info.run_id).data.metrics.keys() == names


def test_without_a_run_nothing_is_begun() -> None:
    with pytest.raises(InvalidArgument, match="start_run"):
        MlflowLog()
    assert mlflow.active_run() is None


def test_a_trainer_and_the_callback_log_to_one_run(tmp_path: Path) -> None:
    with mlflow.start_run() as run:
        train(tmp_path, MlflowLog(), "mlflow")
    assert [step for step, _ in history(run.info.run_id, "loss")] == [1, 2, 3]
    assert history(run.info.run_id, f"{PUSH}step") == [(0, 0), (1, 1), (2, 2), (3, 3)]
