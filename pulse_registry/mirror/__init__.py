"""Mirror: keeps a copy of runs in another root, byte for byte: same keys, same records, same signatures."""

from pulse_registry.mirror.copier import PART_BYTES
from pulse_registry.mirror.fleet import Fleet, Outcome
from pulse_registry.mirror.lanes import Lanes
from pulse_registry.mirror.mirror import Copied, Mirror
from pulse_registry.mirror.rate import Rate, parse_rate

__all__ = ["PART_BYTES", "Copied", "Fleet", "Lanes", "Mirror", "Outcome", "Rate", "parse_rate"]
