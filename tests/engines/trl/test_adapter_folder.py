"""A folder that follows a run of adapters: PEFT loads each version from it, bit for bit."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict

import pulse_registry
from pulse_registry import PushOptions
from pulse_registry.follow import Changed, Failed, FolderEngine, Follower, Pace
from pulse_registry.integrations.trl import PulseCallback
from tests.engines.trl.models import llama
from tests.engines.trl.test_grpo import lora, train


def test_a_followed_folder_is_one_that_peft_loads_as_it_was_trained(tmp_path: Path) -> None:
    root, out = str(tmp_path / "registry"), tmp_path / "followed"
    callback = PulseCallback(root, run="lora", adapters="own", push=PushOptions(dtype="keep"))
    trainer = train(tmp_path / "out", callback, model=llama(), peft_config=lora(), steps=2)
    with pulse_registry.open(root, run="lora", create=False) as registry:
        engine, told = FolderEngine(registry, out), list[Changed | Failed]()
        for version in (0, 2):
            Follower(registry, engine, Pace(version), told.append).look()
            loaded = PeftModel.from_pretrained(llama(), str(out))
            found, pushed = get_peft_model_state_dict(loaded), registry.load(version, framework="torch")
            assert found.keys() == pushed.keys()
            assert all(same(found[name], pushed[name]) for name in pushed)
            assert loaded.peft_config["default"].r == 4
    assert [one.document().get("version") for one in told] == [0, 2]
    trained = get_peft_model_state_dict(trainer.model)
    assert all(same(found[name], trained[name]) for name in trained)


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return found.dtype == wanted.dtype and torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
