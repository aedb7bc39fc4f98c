"""A probe in a vLLM that packs experts as the plugin does not know: its import undoes what the plugin did."""

from __future__ import annotations

from vllm import _custom_ops
from vllm.model_executor.layers.fused_moe.experts import cpu_moe

from tests.engines.support.probe import Probe

for name in ("cpu_prepack_moe_weight", "cpu_fused_moe"):
    setattr(cpu_moe, name, getattr(_custom_ops, name))

__all__ = ["Probe"]
