"""The compactor: a worker that writes back. It attaches merged patches and keyframes to versions that exist."""

from pulse_registry.compaction.background import Background
from pulse_registry.compaction.compactor import Compactor, Done
from pulse_registry.compaction.ladder import CompactOptions, Merge, Whole, Work, due

__all__ = ["Background", "CompactOptions", "Compactor", "Done", "Merge", "Whole", "Work", "due"]
