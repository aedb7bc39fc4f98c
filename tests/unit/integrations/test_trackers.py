"""What trackers of experiments are told: figures of pushes and pulls, in runs that are there."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pulse_registry
from pulse_registry.errors import InvalidArgument
from pulse_registry.integrations.figures import NAMES, PULL, PUSH, figures
from pulse_registry.integrations.mlflow import MlflowLog
from pulse_registry.integrations.wandb import WandbLog
from pulse_registry.options import ComputeOptions
from pulse_registry.results import PullResult, PushResult

PUSHED = PushResult(
    version=7,
    step=70,
    kind="patch",
    changed=5,
    cells=200,
    nbytes=99,
    full_nbytes=400,
    digest="1" * 32,
    phases={"wait": 0.5, "diff": 0.25, "code": 3.0, "upload": 4.0},
)
PULLED = PullResult(
    version=8,
    step=80,
    digest="1" * 32,
    nbytes=42,
    objects=1,
    changed=4,
    phases={"fetch": 2.0, "apply": 0.125},
    cells=200,
)


@dataclass
class Rows:
    """A run of W&B's, as far as a listener sees it."""

    rows: list[tuple[dict[str, float], bool]] = field(default_factory=list)
    defined: dict[str, str] = field(default_factory=dict)

    def define_metric(self, name: str, *, step_metric: str) -> None:
        self.defined[name] = step_metric

    def log(self, data: dict[str, float], *, commit: bool) -> None:
        self.rows.append((data, commit))


def test_the_figures_are_those_of_the_results() -> None:
    assert figures(PUSHED) == {
        "pulse/push/version": 7,
        "pulse/push/step": 70,
        "pulse/push/bytes": 99,
        "pulse/push/changed_share": 0.025,
        "pulse/push/pause_s": 0.75,
    }
    assert figures(PULLED) == {
        "pulse/pull/version": 8,
        "pulse/pull/step": 80,
        "pulse/pull/bytes": 42,
        "pulse/pull/changed_share": 0.02,
        "pulse/pull/pause_s": 0.125,
    }


def test_a_listener_of_wandb_logs_what_a_registry_did_over_the_version() -> None:
    run, model, live = Rows(), {"w": np.zeros(8, np.uint16)}, {"w": np.zeros(8, np.uint16)}
    listener = WandbLog(run, commit=False)
    assert run.defined == {prefix + name: f"{prefix}version" for prefix in (PUSH, PULL) for name in NAMES[1:]}
    with pulse_registry.open(
        "memory://trackers", run="run", compute=ComputeOptions(backend="reference"), on_result=listener
    ) as registry:
        made = [registry.push(0, model), registry.pull("latest", into=live)]
        model["w"][3] = 1
        made += [registry.push(1, model), registry.pull("latest", into=live)]
    assert run.rows == [(figures(result), False) for result in made]
    assert run.rows[2][0]["pulse/push/changed_share"] == run.rows[3][0]["pulse/pull/changed_share"] == 0.125


def test_without_a_run_a_listener_says_what_to_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None))
    with pytest.raises(InvalidArgument, match=r"wandb\.init"):
        WandbLog(commit=True)
    run = Rows()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    WandbLog(commit=True)(PULLED)
    assert run.rows == [(figures(PULLED), True)]
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(active_run=lambda: None))
    with pytest.raises(InvalidArgument, match=r"mlflow\.start_run"):
        MlflowLog()


@pytest.mark.parametrize("given", [None, "named"])
def test_a_listener_of_mlflow_logs_a_batch_at_the_versions_number(
    monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    batches: list[tuple[str, list[Any]]] = []
    client = SimpleNamespace(log_batch=lambda run_id, metrics: batches.append((run_id, metrics)))
    module = SimpleNamespace(
        active_run=lambda: SimpleNamespace(info=SimpleNamespace(run_id="active")),
        MlflowClient=lambda: client,
        entities=SimpleNamespace(Metric=lambda *values: values),
    )
    monkeypatch.setitem(sys.modules, "mlflow", module)
    MlflowLog(given)(PUSHED)
    ((run_id, metrics),) = batches
    assert run_id == (given or "active")
    assert {(name, value, step) for name, value, _, step in metrics} == {
        (name, value, 7) for name, value in figures(PUSHED).items()
    }
