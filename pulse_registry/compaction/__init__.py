"""The compactor: a worker that writes back. It attaches merged patches and keyframes to versions that exist."""

from pulse_registry.compaction.background import Background
from pulse_registry.compaction.compactor import Attached, Compactor
from pulse_registry.compaction.ladder import CompactOptions, KeyframeTask, MergeTask, Task, due

__all__ = ["Attached", "Background", "CompactOptions", "Compactor", "KeyframeTask", "MergeTask", "Task", "due"]
