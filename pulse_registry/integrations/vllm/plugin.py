"""What vLLM calls in each of its processes, by the entry point ``vllm.general_plugins``, before a model is loaded."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from pulse_registry.process import environment

BACKEND: Final = "pulse"
UNPACKED: Final = "unpacked"


_EXPERTS_SCHEMA: Final = (
    "(Tensor(a!) out, Tensor tokens, Tensor w13, Tensor w2, Tensor? w13_bias, Tensor? w2_bias, "
    "Tensor shares, Tensor chosen, str activation, str isa, bool skip_weighted) -> ()"
)


def register() -> None:
    """Make ``pulse`` a backend of weight transfer. Idempotent.

    On CPUs vLLM packs linear layers and experts, and drops their weights, so that nothing can be changed in place:
    there the backend refuses a model. With PULSE_VLLM_CPU=unpacked in the environment, they read their live weights, at
    some cost in speed.
    """
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory  # type: ignore[import-not-found]

    with suppress(ValueError):  # registered before: vLLM loads plugins again in some processes
        WeightTransferEngineFactory.register_engine(BACKEND, "pulse_registry.integrations.vllm.engine", "PulseEngine")
    if environment.VLLM_CPU.read() == UNPACKED:
        _keep_weights()
        with suppress(ImportError):  # another vLLM has other functions: its experts are packed, and refused by name
            _keep_experts()


def _keep_weights() -> None:
    """Let linear layers read their live weights, as vLLM itself does for some of them."""
    import torch
    from vllm.model_executor.layers import utils  # type: ignore[import-not-found]

    def unpacked(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = unpacked


def _keep_experts() -> None:
    """Let experts read their live weights: each step packs those that it uses, for vLLM's own kernel.

    Raises:
        ImportError: this vLLM has other functions for experts; nothing is changed.
    """
    import torch
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe  # type: ignore[import-not-found]
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import (  # type: ignore[import-not-found]
        cpu_fused_moe,
        cpu_prepack_moe_weight,
    )

    if cpu_prepack_moe_weight is _as_it_is:
        return

    def unpacked(*arguments: Any) -> None:
        out, tokens, *held, shares, chosen, activation, isa, skip_weighted = arguments
        used, chosen = chosen.unique(return_inverse=True)
        w13, w2, *biases = [None if one is None else one[used] for one in held]
        chosen = chosen.to(torch.int32)
        packed = [cpu_prepack_moe_weight(one, isa) for one in (w13, w2)]
        cpu_fused_moe(out, tokens, *packed, *biases, shares, chosen, activation, isa, skip_weighted)

    # An operator, so that a compiled model does not look into it: which experts are used is known in the step only.
    cpu_moe.cpu_fused_moe = torch.library.custom_op(
        "pulse::cpu_fused_moe", unpacked, mutates_args=("out",), schema=_EXPERTS_SCHEMA
    )
    cpu_moe.cpu_prepack_moe_weight = _as_it_is


def _as_it_is(weight: Any, isa: str) -> Any:
    return weight
