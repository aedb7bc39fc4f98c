"""verl: the checkpoint engine ``pulse``, which verl imports by ``custom_backend_module``."""

from pulse_registry.integrations.verl.engine import PulseCheckpointEngine

__all__ = ["PulseCheckpointEngine"]
