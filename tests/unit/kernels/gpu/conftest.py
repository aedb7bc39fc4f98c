"""The device under test: the CPU, where Triton interprets the kernels, unless ``--device cuda`` is given."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.config.getoption("--device")
    return name
