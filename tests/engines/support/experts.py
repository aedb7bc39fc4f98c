"""A probe of experts: what a step makes of their live weights."""

from __future__ import annotations

from typing import Any

import torch

from tests.engines.support.probe import Probe

EXPERTS, INNER, HIDDEN = 8, 64, 128


class ExpertsProbe(Probe):
    """Runs the kernel of experts by itself."""

    def probe_step(self, tokens: int, each: int, biased: bool) -> tuple[bool, bool]:
        """Return whether a step gives the bits of vLLM's own packing at load, before and after a weight changes."""
        from vllm import _custom_ops
        from vllm.model_executor.layers.fused_moe.experts import cpu_moe

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=made).bfloat16()

        def made_by(ops: Any) -> torch.Tensor:
            out = torch.empty_like(x)
            packed = [ops.cpu_prepack_moe_weight(one, "vec") for one in (w13, w2)]
            ops.cpu_fused_moe(out, x, *packed, *biases, shares, chosen, "silu", "vec", False)
            return out.view(torch.int16)

        made = torch.Generator().manual_seed(tokens)
        w13, w2, x = random(EXPERTS, 2 * INNER, HIDDEN), random(EXPERTS, HIDDEN, INNER), random(tokens, HIDDEN)
        biases = (random(EXPERTS, 2 * INNER), random(EXPERTS, HIDDEN)) if biased else (None, None)
        shares = torch.rand(tokens, each, generator=made)
        chosen = torch.stack([torch.randperm(EXPERTS, generator=made)[:each] for _ in range(tokens)]).int()
        equal = torch.equal(made_by(cpu_moe), made_by(_custom_ops))
        live, before = cpu_moe.cpu_prepack_moe_weight(w13, "vec"), made_by(cpu_moe)
        live[chosen[0, 0]] *= 2
        return equal, torch.equal(made_by(cpu_moe), made_by(_custom_ops)) and not torch.equal(made_by(cpu_moe), before)
