"""The policy: a trained model's tensors, under the names that its checkpoint has and engines know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from pulse_registry.integrations.trl.adapters import adapter_tensors, base_model, base_tensors, is_adapted, merged
from pulse_registry.weights.module import module_tensors

Adapters = Literal["merge", "own"]
"""What becomes of adapters: merged into the weights that are pushed, or pushed alone, as a run of their own."""


@contextmanager
def policy(model: torch.nn.Module, adapters: Adapters) -> Iterator[Mapping[str, Any]]:
    """Yield what is to be pushed of a trained model, over the memory that it is trained in; read it within the block.

    Raises:
        InvalidModel: two tensors have one name, FSDP1 has sharded it, or its adapters can't be had so.
    """
    model = unwrapped(model)
    if adapters == "own":
        yield adapter_tensors(model)
        return
    with merged(model) if is_adapted(model) else nullcontext():
        yield checkpoint_tensors(model)


def checkpoint_tensors(model: torch.nn.Module) -> dict[str, Any]:
    """Return the tensors under the names that ``save_pretrained`` gives them; tied names too, the checkpoint's first.

    transformers loads some checkpoints into tensors of another form (experts stacked, names changed), and undoes that
    when it saves. What has to be taken apart for it is a copy.
    """
    named = base_tensors(model) if is_adapted(model) else dict(module_tensors(model))
    base = base_model(model)
    if not isinstance(base, PreTrainedModel):
        return named
    saved = _as_saved(base, named)
    return {name: saved[name] for name in named if name in saved} | saved


def _as_saved(model: PreTrainedModel, named: dict[str, Any]) -> dict[str, Any]:
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before transformers 5, models kept the tensors of their checkpoints
        return named
    return dict(revert_weight_conversion(model, named))


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return what is trained, out of what torch.compile and DDP put around it."""
    while True:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):
            model = inner
        else:
            return model
