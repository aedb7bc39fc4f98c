"""The compactor: a worker that writes back. It attaches merged patches and keyframes to versions that exist."""

from pulse_registry.compact.background import Background
from pulse_registry.compact.compactor import Compactor, Done
from pulse_registry.compact.ladder import CompactOptions, Merge, Whole, Work, due

__all__ = ["Background", "CompactOptions", "Compactor", "Done", "Merge", "Whole", "Work", "due"]
