"""Assertions in the suites that test modules inherit explain themselves too."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.unit.store.conformance", "tests.unit.store.model")
