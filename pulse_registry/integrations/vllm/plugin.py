"""What vLLM calls in each of its processes, by the entry point ``vllm.general_plugins``, before a model is loaded."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from pulse_registry.process import environment

BACKEND: Final = "pulse"
UNPACKED: Final = "unpacked"


def register() -> None:
    """Make ``pulse`` a backend of weight transfer. Idempotent.

    On CPUs vLLM packs linear layers for oneDNN and drops their weights, so that nothing can be changed in place: there
    the backend refuses a model. With PULSE_VLLM_CPU=unpacked in the environment, its linear layers read their live
    weights, at some cost in speed.
    """
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory  # type: ignore[import-not-found]

    with suppress(ValueError):  # registered before: vLLM loads plugins again in some processes
        WeightTransferEngineFactory.register_engine(BACKEND, "pulse_registry.integrations.vllm.engine", "PulseEngine")
    if environment.VLLM_CPU.read() == UNPACKED:
        _keep_weights()


def _keep_weights() -> None:
    """Let linear layers read their live weights, as vLLM itself does for some of them."""
    import torch
    from vllm.model_executor.layers import utils  # type: ignore[import-not-found]

    def unpacked(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = unpacked
