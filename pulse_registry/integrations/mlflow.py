"""MLflow: a listener that logs pushes and pulls to a run of MLflow's, on any tracking server. Imports mlflow late."""

from __future__ import annotations

import importlib
import time

from pulse_registry.errors import InvalidArgument
from pulse_registry.integrations.figures import figures
from pulse_registry.results import PullResult, PushResult


class MlflowLog:
    """Logs each push and pull of a registry: ``open(..., on_result=MlflowLog())``.

    The figures are those of ``pulse_registry.integrations.figures``, each at the step that is the version's number.
    """

    def __init__(self, run_id: str | None = None) -> None:
        """Choose the run, on the tracking server that mlflow is set to now.

        Args:
            run_id: of the run; None: the one that this thread has started.

        Raises:
            InvalidArgument: no run is given, and there is none.
        """
        mlflow = importlib.import_module("mlflow")
        if run_id is None:
            active = mlflow.active_run()
            if active is None:
                raise InvalidArgument(
                    "this thread has no run of MLflow's: call mlflow.start_run() first, or give a run_id"
                )
            run_id = active.info.run_id
        self._run_id = run_id
        self._client = mlflow.MlflowClient()
        self._metric = mlflow.entities.Metric

    def __call__(self, result: PushResult | PullResult) -> None:
        """Log a result, in one request."""
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, result.version) for name, value in figures(result).items()]
        self._client.log_batch(self._run_id, metrics)
