"""A real GRPOTrainer pushes by the callback: five steps on a CPU, of all weights, and with adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from trl import GRPOConfig, GRPOTrainer

import pulse_registry
from pulse_registry.errors import InvalidModel
from pulse_registry.integrations.trl import PulseCallback
from pulse_registry.integrations.trl.policy import policy
from tests.engines.trl.models import Seen, differing, llama, prompts, reward, rounded, tokenizer

STEPS = 5


def train(folder: Path, *callbacks: Any, model: Any, steps: int = STEPS, **options: Any) -> GRPOTrainer:
    config = GRPOConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=6,
        learning_rate=1e-2,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=prompts(),
        processing_class=tokenizer(),
        callbacks=list(callbacks),
        **options,
    )
    trainer.train()
    return trainer


def lora(**options: Any) -> LoraConfig:
    return LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False, **options)


def test_each_version_is_the_policy_of_its_step_rounded_bit_for_bit(tmp_path: Path) -> None:
    root, seen = str(tmp_path / "registry"), Seen()
    train(tmp_path / "out", seen, PulseCallback(root, run="grpo"), model=llama())
    with pulse_registry.open(root, run="grpo", create=False) as worker:
        assert [version.step for version in worker.versions()] == [0, 1, 2, 3, 4, 5]
        assert len({version.digest for version in worker.versions()}) == STEPS + 1
        for version in worker.versions():
            assert not differing(worker.load(version.version, framework="torch"), seen.at[version.step])
        assert {"config.json", "generation_config.json", "tokenizer.json"} <= worker.files("latest").keys()


@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"modules_to_save": ["norm"]}], ids=str)
def test_merged_adapters_are_pushed_under_the_names_of_the_base(tmp_path: Path, options: dict[str, Any]) -> None:
    """What is pushed is what PEFT's own merge gives; what is trained is what it is without a push, bit for bit."""

    def merge(model: Any) -> dict[str, torch.Tensor]:
        with torch.random.fork_rng():  # the trainer's own numbers stay what they are
            alike = get_peft_model(llama(), lora(**options))
        alike.load_state_dict(model.state_dict())
        return rounded(alike.merge_and_unload().state_dict())

    root, seen = str(tmp_path / "registry"), Seen(merge)
    first = train(
        tmp_path / "out", seen, PulseCallback(root, run="lora"), model=llama(), peft_config=lora(**options), steps=2
    )
    alone = train(tmp_path / "alone", model=llama(), peft_config=lora(**options), steps=2)
    trained, same = first.model.state_dict(), alone.model.state_dict()
    assert all(torch.equal(trained[name].view(torch.int32), same[name].view(torch.int32)) for name in same)
    with pulse_registry.open(root, run="lora", create=False) as worker:
        assert [version.step for version in worker.versions()] == [0, 1, 2]
        for version in worker.versions():
            assert not differing(worker.load(version.version, framework="torch"), seen.at[version.step])
        layout = {tensor.name for tensor in worker.layout("latest").tensors}
    assert layout | {"lm_head.weight"} == set(llama().state_dict())


def test_an_adapter_is_pushed_as_a_run_of_its_own(tmp_path: Path) -> None:
    root = str(tmp_path / "registry")
    callback = PulseCallback(root, run="lora", adapters="own", push=pulse_registry.PushOptions(dtype="keep"))
    trainer = train(tmp_path / "out", callback, model=llama(), peft_config=lora(), steps=2)
    trainer.model.save_pretrained(tmp_path / "adapter")
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    with pulse_registry.open(root, run="lora", create=False) as worker:
        found = worker.load("latest", framework="torch")
        assert "adapter_config.json" in worker.files("latest")
    assert found.keys() == saved.keys()
    assert all(torch.equal(found[name], saved[name]) for name in saved)


def test_base_weights_are_restored_though_the_push_fails() -> None:
    model = get_peft_model(llama(dtype=torch.bfloat16), lora())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    places = {name: tensor.data_ptr() for name, tensor in model.named_parameters()}
    below = "base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight"

    def push() -> None:
        with policy(model, "merge") as tensors:
            assert not torch.equal(tensors["model.layers.0.self_attn.q_proj.weight"], before[below])
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        push()
    assert not differing(model.state_dict(), before)
    assert {name: tensor.data_ptr() for name, tensor in model.named_parameters()} == places
    assert not any(getattr(part, "merged", False) for part in model.modules())


def test_a_quantised_base_is_refused_and_left_as_it_is() -> None:
    model = get_peft_model(llama(dtype=torch.bfloat16), lora())
    weight = model.base_model.model.model.layers[1].mlp.down_proj.base_layer.weight
    weight.data = weight.data.to(torch.float8_e4m3fn)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InvalidModel, match=r"float8_e4m3fn.*adapters='own'"), policy(model, "merge"):
        pass
    after = model.state_dict()
    assert all(torch.equal(after[name].view(torch.uint8), before[name].view(torch.uint8)) for name in before)
