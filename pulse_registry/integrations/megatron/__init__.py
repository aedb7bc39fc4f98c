"""Slices of Megatron-LM models, under Megatron's names or as Hugging Face tensors.

Megatron is not imported: what ``sharded_state_dict()`` returns is read by its fields.
"""

from pulse_registry.integrations.megatron.fused import QKV, Band, Fused, GateUp
from pulse_registry.integrations.megatron.llama import hugging_face
from pulse_registry.integrations.megatron.names import Names, Target
from pulse_registry.integrations.megatron.slicing import slices

__all__ = ["QKV", "Band", "Fused", "GateUp", "Names", "Target", "hugging_face", "slices"]
