"""The trainer, in an environment with TRL: GRPO on sums. It knows the registry by one line, the callback.

``python -m pulse_registry.demo.vllm.trainer MODEL URL RUN OUT STEPS PROMPTS GROUP_SIZE NEW_TOKENS LEARNING_RATE SEED``
tells of each step, and of its end, by a JSON document a line.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

import pulse_registry
from pulse_registry.demo.fingerprint import fingerprint
from pulse_registry.demo.policy import ChatCodec
from pulse_registry.demo.sums import Sum, reward, sums
from pulse_registry.integrations.trl import PulseCallback


class Steps(TrainerCallback):
    """Tells of each step."""

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell what TRL says of the step."""
        logs = kwargs["logs"]
        if "reward" in logs:
            _tell(event="step", step=state.global_step, reward=float(logs["reward"]))


def right(completions: list[str], first: list[int], second: list[int], **_: Any) -> list[float]:
    """Return the reward of each completion."""
    return [reward(Sum(a, b), text) for text, a, b in zip(completions, first, second, strict=True)]


def main(arguments: list[str]) -> None:
    """Train, and push each step's weights."""
    model_folder, url, run, out, *numbers, rate, seed = arguments
    steps, prompts, group_size, new_tokens = map(int, numbers)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    codec = ChatCodec(tokenizer)
    tasks = [
        {"prompt": codec.text(task), "first": task.first, "second": task.second}
        for task in itertools.islice(sums(int(seed)), steps * prompts)
    ]
    config = GRPOConfig(
        output_dir=str(Path(out) / "trainer"),
        max_steps=steps,
        per_device_train_batch_size=prompts * group_size,
        num_generations=group_size,
        max_completion_length=new_tokens,
        learning_rate=float(rate),
        lr_scheduler_type="constant",
        beta=0.0,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        shuffle_dataset=False,
        seed=int(seed),
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=right,
        args=config,
        train_dataset=Dataset.from_list(tasks),
        processing_class=tokenizer,
        callbacks=[PulseCallback(url, run=run), Steps()],
    )
    trainer.train()
    with pulse_registry.open(url, run=run, create=False) as registry:
        names = [tensor.name for tensor in registry.layout("latest").tensors]  # of tied ones, one
    state = trainer.model.state_dict()
    _tell(event="trained", sha256=fingerprint({name: state[name] for name in names}))


def _tell(**document: object) -> None:
    print(json.dumps({**document, "at": time.time()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
