"""Weights & Biases: a listener that logs pushes and pulls to a run of W&B's.

wandb is imported where no run is given, and then alone.
"""

from __future__ import annotations

import importlib
from typing import Any

from pulse_registry.errors import InvalidArgument
from pulse_registry.integrations.figures import NAMES, PULL, PUSH, figures
from pulse_registry.results import PullResult, PushResult


class WandbLog:
    """Logs each push and pull of a registry: ``open(..., on_result=WandbLog(commit=...))``.

    The figures are those of ``pulse_registry.integrations.figures``, plotted over the version.
    """

    def __init__(self, run: Any = None, *, commit: bool) -> None:
        """Say over what the figures are plotted.

        Args:
            run: what ``wandb.init`` returned; None: the process's current run.
            commit: whether each result is a row of its own, which moves W&B's step on by one. Where you log to this run
                with ``step=...``, give False: rows of yours whose step is over would be left out. The figures then go
                with your next row; of several versions until then, the last one is shown.

        Raises:
            InvalidArgument: no run is given, and there is none.
        """
        run = importlib.import_module("wandb").run if run is None else run
        if run is None:
            raise InvalidArgument("there is no run of W&B's yet: call wandb.init() first, or give its run")
        self._run, self._commit = run, commit
        for prefix in (PUSH, PULL):
            for name in NAMES[1:]:
                run.define_metric(prefix + name, step_metric=prefix + NAMES[0])

    def __call__(self, result: PushResult | PullResult) -> None:
        """Log a result."""
        self._run.log(figures(result), commit=self._commit)
