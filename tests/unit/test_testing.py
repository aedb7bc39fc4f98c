"""The public tools for tests: their names, and what they ask for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pulse_registry import testing
from tests.support.waiting import HANG_S

WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = None
from pulse_registry import testing
testing.FaultStore
try:
    testing.StoreTests
except ModuleNotFoundError as error:
    print(error)
"""


def test_the_public_names_are_these_and_all_are_there() -> None:
    tools = ["CountingStore", "Fault", "FaultStore", "LatencyStore"]
    assert testing.__all__ == [*tools, "ObjectTests", "StoreTests", "Subject"]
    for name in testing.__all__:
        assert getattr(testing, name).__doc__
    with pytest.raises(AttributeError, match="NoSuchStore"):
        testing.NoSuchStore  # noqa: B018


@pytest.mark.slow
def test_only_the_tests_of_a_store_need_pytest_and_they_say_so() -> None:
    command = [sys.executable, "-c", WITHOUT_PYTEST]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout == "StoreTests needs pytest: pip install pytest\n"
