"""Logs and snapshots that are valid and vast: what they cost goes by their bytes, and not by the square of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.sampling import slow_but
from tests.unit.log.vast import LOGS


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["patches_of_one_pair"], LOGS))
def test_a_record_costs_by_its_own_bytes_and_not_by_those_before_it(name: str) -> None:
    done = subprocess.run([sys.executable, "-m", "tests.unit.log.vast", name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or "it took more processor time than it may"
