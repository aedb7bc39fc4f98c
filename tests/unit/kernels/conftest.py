"""The backends under test: each one, and each one that must agree with the reference."""

from __future__ import annotations

import pytest

from pulse_kernels import Backend, get_backend
from tests.unit.kernels.inputs import BACKENDS, FAST


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend, the reference included."""
    return get_backend(request.param)


@pytest.fixture(scope="session", params=FAST)
def fast(request: pytest.FixtureRequest) -> Backend:
    """Every backend but the reference."""
    return get_backend(request.param)


@pytest.fixture(scope="session")
def reference() -> Backend:
    return get_backend("reference")
