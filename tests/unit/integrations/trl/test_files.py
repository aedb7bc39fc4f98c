"""A run that a Trainer pushes carries what engines load its versions by: configuration, tokenizer, adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import pulse_registry
from pulse_registry.checkpoint import pull_checkpoint
from tests.unit.integrations.trl.test_callback import callback, tiny

transformers: Any = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    made.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return made


def begin(run: str, model: Any, processor: Any, **options: Any) -> None:
    """Push what training begins with, and end it."""
    state, pushing = transformers.TrainerState(), callback(f"memory://{run}", run=run, **options)
    arguments = transformers.TrainingArguments(output_dir="unused", use_cpu=True, report_to=[])
    pushing.on_train_begin(arguments, state, None, model=model, processing_class=processor)
    pushing.on_train_end(arguments, state, None, model=model)


def test_a_pulled_folder_is_the_policy_for_transformers(tmp_path: Path) -> None:
    model, words = tiny(), tokenizer()
    begin("trl-files", model, words)
    with pulse_registry.open("memory://trl-files", run="trl-files") as reader:
        pull_checkpoint(reader, into=tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
    assert type(loaded) is type(model)
    assert loaded.dtype == torch.bfloat16
    own = model.state_dict()
    assert all(torch.equal(own[name].to(torch.bfloat16), tensor) for name, tensor in loaded.state_dict().items())
    found = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert found("b a c")["input_ids"] == words("b a c")["input_ids"] == [2, 1, 0]
    assert found.chat_template == words.chat_template


def test_a_policy_that_is_no_transformers_model_has_what_its_processor_saves() -> None:
    begin("trl-plain", torch.nn.Linear(2, 2), None)
    begin("trl-words", torch.nn.Linear(2, 2), tokenizer())
    for run in ("trl-plain", "trl-words"):
        with pulse_registry.open(f"memory://{run}", run=run) as reader:
            assert ("tokenizer.json" in reader.files()) == (run == "trl-words")
            assert "config.json" not in reader.files()


@pytest.mark.parametrize("adapters", ["merge", "own"])
def test_adapters_are_carried_as_what_they_are_pushed_as(tmp_path: Path, adapters: str) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = peft.get_peft_model(tiny(), config)
    begin(f"trl-{adapters}", model, None, adapters=adapters)
    with pulse_registry.open(f"memory://trl-{adapters}", run=f"trl-{adapters}") as reader:
        pull_checkpoint(reader, into=tmp_path)
        names = reader.files().keys()
    if adapters == "merge":
        assert "adapter_config.json" not in names
        merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, local_files_only=True)
        assert type(merged) is type(tiny())
        return
    assert names == {"adapter_config.json"}
    assert json.loads((tmp_path / "adapter_config.json").read_bytes())["inference_mode"]
    loaded = peft.PeftModel.from_pretrained(tiny().to(torch.bfloat16), tmp_path)
    own = peft.get_peft_model_state_dict(model)
    found = peft.get_peft_model_state_dict(loaded)
    assert own.keys() == found.keys()
    assert all(torch.equal(own[name].to(torch.bfloat16), found[name].to(torch.bfloat16)) for name in own)
