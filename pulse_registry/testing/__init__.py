"""Stores for tests: that fail on purpose, count what goes through them, or are slow."""

from pulse_registry.testing.counting import CountingStore
from pulse_registry.testing.fault import Fault, FaultStore
from pulse_registry.testing.latency import LatencyStore

__all__ = ["CountingStore", "Fault", "FaultStore", "LatencyStore"]
