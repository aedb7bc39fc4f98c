"""A real AsyncGRPOTrainer hands its weights to ours, by its own calls in its own order; nothing is trained (CUDA)."""

from __future__ import annotations

import inspect
import queue
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from peft import LoraConfig
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl.experimental.async_grpo.async_grpo_trainer import WeightTransferProtocol

import pulse_registry
from pulse_registry import PushResult
from pulse_registry.integrations.trl import PulseWeightTransfer
from tests.engines.trl.models import differing, llama, prompts, reward, rounded, tokenizer


class Worker:
    """Stands for the rollout worker: it hears of each version, and makes no completions."""

    def __init__(self, calls: list[str]) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self._calls = calls

    def start(self) -> None:
        self._calls.append("start")

    def stop(self) -> None:
        self._calls.append("stop")

    def update_model_version(self, model_version: int) -> None:
        self._calls.append(f"model version {model_version}")

    def check_health(self, stale_after_s: float) -> None:
        pass


class Recorded(PulseWeightTransfer):
    """Tells of its calls."""

    def __init__(self, calls: list[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._calls = calls

    def __getattribute__(self, name: str) -> Any:
        if name in ("init_weight_transfer", "pause", "send_weights", "resume", "destroy"):
            self._calls.append(name)
        return super().__getattribute__(name)


def configuration(folder: Path) -> AsyncGRPOConfig:
    return AsyncGRPOConfig(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
    )


def trainer(folder: Path, sending: Any, calls: list[str], **options: Any) -> AsyncGRPOTrainer:
    llama().save_pretrained(folder / "model")
    with patch("torch.cuda.get_device_name", lambda *_: "none"):
        return AsyncGRPOTrainer(
            model=str(folder / "model"),
            reward_funcs=reward,
            args=configuration(folder),
            train_dataset=prompts(),
            processing_class=tokenizer(),
            rollout_worker=Worker(calls),
            weight_transfer=sending,
            **options,
        )


def sync(made: AsyncGRPOTrainer) -> None:
    """Have the trainer send its weights when it begins, and again once seven cells have changed."""
    its_own = {type(found).__name__: found for found in reversed(made.callback_handler.callbacks)}
    its_own["_TrainBeginCallback"].on_train_begin(made.args, made.state, made.control)
    with torch.no_grad():
        changed = next(parameter for parameter in made.model.parameters() if parameter.requires_grad)
        changed.view(-1)[:7] += 1
    made.state.global_step = made.args.weight_sync_steps
    its_own["StepIntervalCallback"].on_step_end(made.args, made.state, made.control)


def test_the_calls_are_those_of_the_protocol() -> None:
    methods = {name: kind for name, kind in vars(WeightTransferProtocol).items() if inspect.isfunction(kind)}
    methods = {name: kind for name, kind in methods.items() if not name.startswith("_")}
    assert set(methods) == {"init_weight_transfer", "pause", "send_weights", "resume", "destroy"}
    for name, method in methods.items():
        ours = inspect.signature(getattr(PulseWeightTransfer, name))
        assert list(ours.parameters) == list(inspect.signature(method).parameters), name


@pytest.mark.parametrize("adapted", [False, True], ids=["all weights", "adapter"])
def test_each_sync_is_a_version_that_is_committed_before_the_worker_hears_of_it(tmp_path: Path, adapted: bool) -> None:
    calls: list[str] = []

    def notify(result: PushResult) -> None:
        calls.append(f"committed {result.version}")

    root = str(tmp_path / "registry")
    options = {"peft_config": LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)} if adapted else {}
    made = trainer(tmp_path / "out", Recorded(calls, root, run="async", notify=notify), calls, **options)
    sync(made)
    one = ["pause", "send_weights", "resume"]
    assert calls == [
        *("init_weight_transfer", *one, "committed 0", "model version 1", "start"),
        *(*one, "committed 1", "model version 2"),
    ]
    with pulse_registry.open(root, run="async", create=False) as worker:
        first, second = worker.versions()
        found = worker.load("latest", framework="torch")
    assert first.changed == first.cells
    if adapted:
        assert 0 < second.changed <= 32 * 32
        assert found.keys() | {"lm_head.weight"} == set(llama().state_dict())
    else:
        assert second.changed == 7
        assert not differing(found, rounded(dict(made.model.named_parameters())))
    made.weight_transfer.destroy()
