"""Mirror: keeps a copy of runs in another root, byte for byte: same keys, same records, same signatures.

A promotion makes the copy the home that takes records.
"""

from pulse_registry.mirror.copier import PART_BYTES
from pulse_registry.mirror.fleet import Fleet, Outcome, is_name, matching_runs
from pulse_registry.mirror.lanes import Lanes
from pulse_registry.mirror.mirror import Copied, Mirror
from pulse_registry.mirror.promotion import Promoted, Promotion, Site
from pulse_registry.mirror.rate import Rate, parse_rate

__all__ = [
    "PART_BYTES",
    "Copied",
    "Fleet",
    "Lanes",
    "Mirror",
    "Outcome",
    "Promoted",
    "Promotion",
    "Rate",
    "Site",
    "is_name",
    "matching_runs",
    "parse_rate",
]
