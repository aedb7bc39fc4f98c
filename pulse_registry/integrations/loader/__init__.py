"""Slices of a model as its own loader fills them: where each cell of a checkpoint lives in an engine's parameters."""

from pulse_registry.integrations.loader.live import LiveMap, live_map

__all__ = ["LiveMap", "live_map"]
