"""Tests with a real TRL, in an environment of its own: `make test-trainers`."""

from __future__ import annotations

import importlib.util

# `make test` has no TRL: there is nothing here for it.
collect_ignore_glob = [] if importlib.util.find_spec("trl") else ["test_*.py"]
