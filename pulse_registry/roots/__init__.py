"""Several roots that hold a run: its home, and copies of it; read from the nearest, written at the home."""

from __future__ import annotations

from pulse_registry.roots.connect import connect_roots, roots_of
from pulse_registry.roots.nearest import NearestStore

__all__ = ["NearestStore", "connect_roots", "roots_of"]
