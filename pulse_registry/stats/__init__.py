"""Stats of a run: how sparse its updates are, counted from the patches that it has; nothing is written to its store."""

from pulse_registry.stats.counts import ExponentCounts, StepStats, WindowStats
from pulse_registry.stats.run_stats import RunStats

__all__ = ["ExponentCounts", "RunStats", "StepStats", "WindowStats"]
