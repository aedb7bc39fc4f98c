"""Tests against real engines, with a vLLM that is installed in an environment of its own: `make test-engines`."""

from __future__ import annotations

import importlib.util

# `make test` has no vLLM: there is nothing here for it.
collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]
if not collect_ignore_glob:
    pytest_plugins = ["tests.engines.support.fixtures"]
