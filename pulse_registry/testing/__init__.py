"""Test tools for those who use or extend the registry.

Stores that fail on purpose (`FaultStore`), are slow (`LatencyStore`) or count what goes through them (`CountingStore`);
and the contract of Store as a class of tests (`StoreTests`), for the author of a store; of a store whose objects are
created once and never listed, `ObjectTests`. These need pytest.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from pulse_registry.testing.counting import CountingStore
from pulse_registry.testing.fault import Fault, FaultStore
from pulse_registry.testing.latency import LatencyStore

if TYPE_CHECKING:
    from pulse_registry.testing.object_tests import ObjectTests, Subject
    from pulse_registry.testing.store_tests import StoreTests

__all__ = ["CountingStore", "Fault", "FaultStore", "LatencyStore", "ObjectTests", "StoreTests", "Subject"]

_TESTS = {"ObjectTests": "object_tests", "StoreTests": "store_tests", "Subject": "object_tests"}


def __getattr__(name: str) -> Any:
    """Import pytest, and what needs it, on first use."""
    if name not in _TESTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pytest
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{name} needs pytest: pip install pytest", name="pytest") from error
    modules = {f"{__name__}.{module}" for module in _TESTS.values()}
    if not modules & sys.modules.keys():
        pytest.register_assert_rewrite(*modules)  # so that what fails shows both sides of a comparison
    return getattr(importlib.import_module(f"{__name__}.{_TESTS[name]}"), name)
