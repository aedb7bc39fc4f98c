"""A real Trainer of transformers pushes by the callback, and a worker pulls its weights, rounded to BF16."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pulse_registry
from pulse_registry import InvalidArgument, InvalidModel, Registry, StoreUnavailable
from pulse_registry.store import MemoryStore
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import Fault
from tests.support.registries import quick

transformers: Any = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def callback(*args: Any, **kwargs: Any) -> Any:
    return importlib.import_module("pulse_registry.integrations.trl").PulseCallback(*args, **kwargs)


def tiny() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=32,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config)


class Seen(transformers.TrainerCallback):  # type: ignore[misc]
    """Keeps what the policy was after each step, rounded to BF16."""

    def __init__(self) -> None:
        self.at: dict[int, dict[str, torch.Tensor]] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.at[state.global_step] = rounded(kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.at[state.global_step] = rounded(kwargs["model"])


def rounded(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.to(torch.bfloat16, copy=True) for name, tensor in model.state_dict().items()}


def train(folder: Path, *callbacks: Any, steps: int = 3, model: Any = None) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=1,
        use_cpu=True,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    rows = [{"input_ids": [1, 2, n], "labels": [1, 2, n]} for n in range(3, 3 + steps)]
    trainer = transformers.Trainer(model=model or tiny(), args=arguments, train_dataset=rows, callbacks=list(callbacks))
    trainer.train()
    return trainer


def same(weights: dict[str, Any], wanted: dict[str, torch.Tensor]) -> None:
    assert weights.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(weights[name].view(torch.int16), tensor.view(torch.int16)), name


def test_who_listens_is_told_of_each_push_of_a_trainer(tmp_path: Path) -> None:
    heard: list[pulse_registry.PushResult] = []
    train(tmp_path / "out", callback(str(tmp_path / "registry"), run="run", on_result=heard.append))
    assert [(result.version, result.step) for result in heard] == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_each_version_is_the_trained_policy_rounded_bit_for_bit(tmp_path: Path) -> None:
    seen, pushing = Seen(), callback(str(tmp_path / "registry"), run="math", name="trainer")
    train(tmp_path / "out", seen, pushing)
    with pulse_registry.open(str(tmp_path / "registry"), run="math", create=False) as worker:
        versions = worker.versions()
        assert [version.step for version in versions] == [0, 1, 2, 3]
        assert worker.layout("latest").tied == {"lm_head.weight": "model.embed_tokens.weight"}
        assert all(version.changed for version in versions[1:])
        for version in versions:
            same(worker.load(version.version, framework="torch"), seen.at[version.step])
        config = json.loads(worker.files("latest")["config.json"])
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert pushing.last.version == 3


def test_the_last_step_is_pushed_though_it_is_not_its_turn(tmp_path: Path) -> None:
    seen, pushing = Seen(), callback("memory://callback-last", run="math", every=2)
    train(tmp_path, seen, pushing)
    with pulse_registry.open("memory://callback-last", run="math", create=False) as worker:
        assert [version.step for version in worker.versions()] == [0, 2, 3]
        same(worker.load("latest", framework="torch"), seen.at[3])


@pytest.mark.parametrize("broken", [2, 3], ids=["in between", "at the end"])
def test_training_goes_on_while_the_store_is_down(tmp_path: Path, broken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("pulse_registry.integrations.trl.callback")
    # Version 0 is a keyframe; each later version is one patch.
    down = Fault("fail_before", "put", lambda _, key: "objects/patch/" in key, nth=broken)
    store = FaultStore(MemoryStore(f"callback-down-{broken}"), [down])

    def opened(_: str, *, run: str) -> Registry:
        return quick(store, dtype="bf16")

    monkeypatch.setattr(module, "open_run", opened)
    seen, pushing = Seen(), callback("-", run="-")
    train(tmp_path, seen, pushing)
    with quick(store) as worker:
        steps = [version.step for version in worker.versions()]
        assert steps == {2: [0, 1, 3], 3: [0, 1, 2, 3]}[broken]
        same(worker.load("latest", framework="torch"), seen.at[3])


def test_a_store_that_is_down_at_the_start_ends_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("pulse_registry.integrations.trl.callback")
    store = FaultStore(MemoryStore("callback-down-first"), [Fault("fail_before")])
    monkeypatch.setattr(module, "open_run", lambda _, *, run: quick(store, dtype="bf16"))
    with pytest.raises(StoreUnavailable):
        train(tmp_path, callback("-", run="-"))


def test_a_second_training_goes_on_in_the_run(tmp_path: Path) -> None:
    pushing = callback("memory://callback-again", run="math")
    train(tmp_path, pushing, steps=1)
    train(tmp_path, pushing, steps=1)
    with pulse_registry.open("memory://callback-again", run="math", create=False) as worker:
        assert [version.step for version in worker.versions()] == [0, 1, 0, 1]


def test_weights_that_zero_3_spread_are_refused_with_what_to_do() -> None:
    spread = torch.nn.Linear(4, 4)
    spread.weight.data = torch.empty(0)
    spread.weight.ds_shape = torch.Size((4, 4))  # type: ignore[assignment]
    state = transformers.TrainerState()
    with pytest.raises(InvalidModel, match=r"ZeRO-3.*GatheredParameters"):
        callback("memory://callback-zero", run="math").on_train_begin(None, state, None, model=spread)
    with pulse_registry.open("memory://callback-zero", run="math") as reader:
        assert not reader.versions()


@pytest.mark.parametrize(("wrong", "why"), [({"every": 0}, "every is 0"), ({"adapters": "drop"}, "adapters is 'drop'")])
def test_options_are_checked_before_training(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        callback("memory://callback", run="math", **wrong)
