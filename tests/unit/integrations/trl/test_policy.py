"""What is pushed of a model has the names, and the cells, of what ``save_pretrained`` writes."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pulse_registry import InvalidModel

transformers: Any = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
}


def pushed(model: torch.nn.Module, adapters: str = "merge") -> dict[str, torch.Tensor]:
    module = importlib.import_module("pulse_registry.integrations.trl.policy")
    with module.policy(model, adapters) as tensors:
        return {name: tensor.clone() for name, tensor in tensors.items()}


def make(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "experts":
        config = transformers.MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2)
    else:
        config = transformers.LlamaConfig(**SMALL, tie_word_embeddings=kind == "tied")
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


@pytest.mark.parametrize("kind", ["plain", "tied", "experts"])
def test_names_and_cells_are_those_of_the_checkpoint(kind: str, tmp_path: Path) -> None:
    model = make(kind)
    model.save_pretrained(tmp_path)
    saved, found = load_file(tmp_path / "model.safetensors"), pushed(model)
    assert found.keys() - saved.keys() == ({"lm_head.weight"} if kind == "tied" else set())
    for name, tensor in saved.items():
        assert torch.equal(found[name].view(torch.int16), tensor.view(torch.int16)), name


def test_the_checkpoints_name_of_a_tied_tensor_comes_first() -> None:
    names = list(pushed(make("tied")))
    assert names.index("model.embed_tokens.weight") < names.index("lm_head.weight")


@pytest.mark.slow
def test_a_plain_module_has_its_own_names_without_those_of_wrappers() -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    compiled = torch.compile(inner)
    assert pushed(compiled).keys() == inner.state_dict().keys()  # type: ignore[arg-type]


def test_a_model_without_an_adapter_has_none_to_push() -> None:
    with pytest.raises(InvalidModel, match="has no adapter to push"):
        pushed(torch.nn.Linear(2, 2), "own")
