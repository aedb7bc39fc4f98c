"""TRL, and all else that trains with transformers' Trainer: a callback that pushes, and AsyncGRPO's weight transfer.

transformers is imported here, and only here; TRL itself and PEFT are not.
"""

from pulse_registry.integrations.trl.callback import PulseCallback
from pulse_registry.integrations.trl.weight_transfer import PulseWeightTransfer

__all__ = ["PulseCallback", "PulseWeightTransfer"]
