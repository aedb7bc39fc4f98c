"""Tests with a real Ray, in an environment of its own: `make test-trainers`."""

from __future__ import annotations

import importlib.util

# `make test` has no Ray: there is nothing here for it.
collect_ignore_glob = [] if importlib.util.find_spec("ray") else ["test_*.py"]
