"""Retention: which versions of a run are kept, and how the rest leaves the store.

Docs: docs/how-to/collect-old-versions.md.
"""

from pulse_registry.retention.collector import Collector, GcResult
from pulse_registry.retention.plan import Plan, plan_gc
from pulse_registry.retention.policy import RetentionPolicy

__all__ = ["Collector", "GcResult", "Plan", "RetentionPolicy", "plan_gc"]
