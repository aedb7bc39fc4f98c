"""Assertions in the model that test modules inherit explain themselves too."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.conformance.model")
