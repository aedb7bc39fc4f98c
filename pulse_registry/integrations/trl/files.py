"""Files of the policy: what a run carries so that engines load its versions: configuration, tokenizer, adapter."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedModel

from pulse_registry.integrations.trl.adapters import base_model
from pulse_registry.integrations.trl.policy import Adapters, unwrapped
from pulse_registry.push.files import configuration, read_files
from pulse_registry.weights.model import PublishDtype


def policy_files(model: torch.nn.Module, adapters: Adapters, processor: Any, dtype: PublishDtype) -> dict[str, bytes]:
    """Return the small files that go with a policy's versions, by name.

    Args:
        model: that is trained.
        adapters: what becomes of its adapters: pushed alone, they have ``adapter_config.json``.
        processor: the trainer's tokenizer or processor; None: it has none.
        dtype: how weights are published.

    Raises:
        InvalidArgument: they can't be carried.
    """
    model = unwrapped(model)
    base = base_model(model)
    found: dict[str, bytes] = {}
    if adapters == "merge" and isinstance(base, PreTrainedModel):
        found = configuration(base, dtype) or {}
    with TemporaryDirectory(prefix="pulse-files-") as name:
        folder = Path(name)
        if adapters == "own":
            _save_adapter(model, base, folder)
        if hasattr(processor, "save_pretrained"):
            processor.save_pretrained(folder)
        return (read_files(folder) if any(folder.iterdir()) else {}) | found


def _save_adapter(model: Any, base: torch.nn.Module, folder: Path) -> None:
    """Write the active adapter's configuration as PEFT does with its weights: to be used, and on which base."""
    config = copy.copy(model.peft_config[model.active_adapter])
    config.inference_mode = True
    config.base_model_name_or_path = config.base_model_name_or_path or getattr(base, "name_or_path", None)
    config.save_pretrained(folder)
