"""One rank of trainers whose ranks hold the whole model: ``replica_ranks.py ROOT OUT KIND...``, one after the other.

A kind is ``ddp``, or DeepSpeed's ``zero1``, ``zero2`` or ``zero3``, with ``-fp32`` for weights that are no BF16, or
with ``-fails``: then rank 1 raises after the last step. torchrun's variables say which rank this is. It is started by
its path, and finds its models beside it: verl installs a package ``tests`` of its own.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState
from models import Seen, llama, prompts, reward, rounded, tokenizer
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import pulse_registry
from pulse_registry import InvalidModel, Slice
from pulse_registry.integrations.trl import PulseCallback

STEPS = 3


class Slices(TrainerCallback):  # type: ignore[misc]
    """Pushes what ZeRO-3 has left on this rank."""

    def __init__(self, root: str) -> None:
        self._run = pulse_registry.open(root, run="zero3", process_group=dist.group.WORLD)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        parts = {}
        for name, parameter in kwargs["model"].named_parameters():
            at = dist.get_rank() * parameter.ds_tensor.numel()  # the last one has cells that are nobody's
            parts[name] = Slice(parameter.ds_tensor[: parameter.ds_numel - at], of=tuple(parameter.ds_shape), at=at)
        self._run.push(state.global_step, parts)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._run.close()


def zero(kind: str) -> dict[str, Any] | None:
    """Return DeepSpeed's configuration; None: DDP."""
    if not kind.startswith("zero"):
        return None
    return {
        "zero_optimization": {"stage": int(kind[4]), "stage3_param_persistence_threshold": 0},
        "bf16": {"enabled": not kind.endswith("-fp32")},
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
    }


def gathered(model: Any) -> dict[str, torch.Tensor]:
    """Return the weights that ZeRO-3 has spread over the ranks. Its own GatheredParameters gave noise over gloo."""
    whole = {}
    for name, parameter in model.named_parameters():
        parts = [torch.empty_like(parameter.ds_tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, parameter.ds_tensor.detach())
        whole[name] = torch.cat(parts)[: parameter.ds_numel].view(parameter.ds_shape)
    return rounded(whole)


def train(kind: str, out: str, *callbacks: Any) -> Any:
    """Train by GRPO, and return what the trainer has wrapped its model in."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    calls = 0

    def rewards(completions: list[str], **_: Any) -> list[float]:
        nonlocal calls
        calls += 1
        if calls > STEPS and dist.get_rank() == 1:
            raise RuntimeError("this rank fails on purpose")
        return reward(completions)

    config = GRPOConfig(
        output_dir=out,
        max_steps=STEPS + kind.endswith("-fails"),
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=6,
        learning_rate=1e-2,
        use_cpu=True,
        bf16=kind.startswith("zero") and not kind.endswith("-fp32"),
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        deepspeed=zero(kind),
    )
    trainer = GRPOTrainer(
        model=llama(),
        reward_funcs=rewards,
        args=config,
        train_dataset=prompts(),
        processing_class=tokenizer(),
        callbacks=list(callbacks),
    )
    trainer.train()
    return trainer.model_wrapped


def main(root: str, out: str, *kinds: str) -> None:
    if importlib.util.find_spec("deepspeed"):
        import deepspeed

        # Its collectives in shared memory are compiled for a minute; torch's own do.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    for kind in kinds:
        spread = kind == "zero3"
        seen = Seen(gathered if spread else None)
        try:
            if spread:
                with pytest.raises(InvalidModel, match="use ZeRO-2"):
                    train(kind, out, PulseCallback(root, run="refused"))
            wrapped = train(kind, out, seen, Slices(root) if spread else PulseCallback(root, run=kind))
            wanted = "DeepSpeedEngine" if zero(kind) else "DistributedDataParallel"
            assert type(wrapped).__name__ == wanted, type(wrapped)
        finally:
            torch.save(seen.at, Path(out, f"{kind}-{dist.get_rank()}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
