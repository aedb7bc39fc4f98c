"""One rank of an FSDP2 trainer: ``torchrun --nproc-per-node 2 tests/engines/trl/fsdp_ranks.py ROOT OUT``.

It is started by its path, and finds its models beside it: verl installs a package ``tests`` of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import DistributedType, PartialState
from models import Seen, llama
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainingArguments

from pulse_registry.integrations.trl import PulseCallback


def whole(model: Any) -> dict[str, torch.Tensor]:
    """Return the trained weights, gathered and rounded."""
    sharded = [name for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)]
    assert sharded, "FSDP2 has sharded nothing"
    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).to(torch.bfloat16, copy=True)
        for name, tensor in model.state_dict().items()
    }


def main(root: str, out: str) -> None:
    PartialState(cpu=True)
    arguments = TrainingArguments(
        output_dir=out,
        max_steps=3,
        per_device_train_batch_size=1,
        use_cpu=True,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        fsdp=True,
        fsdp_config={"fsdp_version": 2, "transformer_layer_cls_to_wrap": "LlamaDecoderLayer"},
    )
    # accelerate lets FSDP2 shard on devices only; for gloo and the CPU nothing else differs.
    assert PartialState().distributed_type == DistributedType.MULTI_CPU
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    rows = [{"input_ids": [4, 5, n], "labels": [4, 5, n]} for n in range(6, 18)]
    seen = Seen(whole)
    callbacks = [seen, PulseCallback(root, run="fsdp")]
    Trainer(model=llama(), args=arguments, train_dataset=rows, callbacks=callbacks).train()
    if dist.get_rank() == 0:
        torch.save(seen.at, Path(out, "seen.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
