"""What is logged: pushes and pulls of a small policy, and a real Trainer's pushes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import Trainer, TrainingArguments

import pulse_registry
from pulse_registry.integrations.trl import PulseCallback
from pulse_registry.options import ComputeOptions
from pulse_registry.results import PullResult, PushResult, ResultListener
from tests.engines.trl.models import llama

Result = PushResult | PullResult


def push_and_pull(root: Path, listener: ResultListener, versions: int = 3) -> list[Result]:
    """Push versions of a model of 64 cells and pull each, and return what was told of them."""
    model, live = {"w": np.zeros(64, np.uint16)}, {"w": np.zeros(64, np.uint16)}
    made: list[Result] = []
    compute = ComputeOptions(backend="reference")
    with pulse_registry.open(root, run="run", compute=compute, on_result=listener) as registry:
        for step in range(versions):
            model["w"][step] = 1
            made.append(registry.push(10 * step, model))
            made.append(registry.pull("latest", into=live))
    return made


def train(folder: Path, listener: ResultListener, report_to: str) -> None:
    """Train a tiny model for three steps; the callback pushes, and the Trainer itself reports to a tracker as well."""
    ids = torch.arange(8) % 16
    trainer = Trainer(
        model=llama(),
        args=TrainingArguments(
            output_dir=str(folder / "out"),
            max_steps=3,
            per_device_train_batch_size=1,
            use_cpu=True,
            learning_rate=1e-2,
            report_to=[report_to],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": ids, "labels": ids}] * 4,
        callbacks=[PulseCallback(str(folder / "registry"), run="run", on_result=listener)],
    )
    trainer.train()
