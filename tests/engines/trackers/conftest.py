"""Tests with the real W&B and MLflow, in the environment of trainers: `make test-trainers`."""

from __future__ import annotations

import importlib.util

# `make test` has neither: there is nothing here for it.
collect_ignore_glob = [f"test_{name}.py" for name in ("wandb", "mlflow") if importlib.util.find_spec(name) is None]
