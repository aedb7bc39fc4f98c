"""What is pushed comes back bit for bit, whatever its dtypes, and from wherever the folder stands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.checkpoints import (
    bf16_model,
    bits,
    held,
    odd_model,
    save,
    save_sharded,
    step_of,
    surplus,
    version_of,
)
from tests.support.command_line import Pulse, Run


@pytest.fixture
def at(tmp_path: Path, pulse: Pulse, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PULSE_ROOT", str(tmp_path / "registry"))
    monkeypatch.setenv("PULSE_RUN", "odd")
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("at")
def test_every_dtype_shape_and_bit_pattern_survives(pulse: Pulse, tmp_path: Path) -> None:
    model = odd_model()
    after = step_of(model, 3, share=0.2)
    for step, state in enumerate((model, after)):
        file = save(tmp_path / "model.safetensors", state)
        assert pulse("push", "--dtype", "keep", "--step", step, file).code == 0
    for version, state in ((0, model), (1, after), (0, model)):
        answer = pulse("pull", "--out", tmp_path / "out", "--version", version)
        assert answer.code == 0, answer
        assert held(tmp_path / "out") == bits(state)


def test_float32_masters_are_published_rounded_to_bf16(pulse: Pulse, at: Path) -> None:
    masters = {"w": np.array([1.0, 1.00390625, -0.0, 3e-45, np.inf], np.float32)}
    assert pulse("push", "--step", 0, save(at / "masters.safetensors", masters)).code == 0
    assert pulse("pull", "--out", at / "out").code == 0
    assert held(at / "out") == {"w": ((5,), np.array([0x3F80, 0x3F80, 0x8000, 0, 0x7F80], np.uint16).tobytes())}


def test_a_sharded_folder_is_pushed_as_one_model(pulse: Pulse, at: Path) -> None:
    model = bf16_model()
    assert pulse("push", "--step", 0, save_sharded(at / "sharded", model)).code == 0
    save(at / "single" / "model.safetensors", model)
    second = pulse("push", "--step", 1, "--json", at / "single")
    assert second.json["changed"] == 0
    assert pulse("pull", "--out", at / "out").code == 0
    assert held(at / "out") == bits(model)


def test_a_folder_of_links_is_pushed_as_the_cache_of_hugging_face_has_them(pulse: Pulse, at: Path) -> None:
    model = bf16_model()
    snapshot = at / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    for path in save_sharded(at / "blobs", model).iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    assert pulse("push", "--step", 0, snapshot).code == 0
    assert pulse("pull", "--out", at / "out").code == 0
    assert held(at / "out") == bits(model)


def test_a_pulled_folder_can_be_pushed_again(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    assert pulse("pull", "--out", tmp_path / "out").code == 0
    assert pulse("push", "--step", 99, "--json", tmp_path / "out").json["changed"] == 0


@pytest.mark.parametrize(
    ("route", "most"),
    [([4], None), ([3, 4], 0.1), ([0, 4], 0.2), ([4, 1], 0.2), ([4, 1, 3, 0, 4], 0.2)],
    ids=["from nothing", "from the version before", "from several back", "backwards", "to and fro"],
)
def test_a_folder_gets_from_any_version_to_any_other(
    pulse: Pulse, run: Run, tmp_path: Path, route: list[int], most: float | None
) -> None:
    out = tmp_path / "out"
    whole = sum(tensor.nbytes for tensor in run.states[0].values())
    for version in route:
        answer = pulse("pull", "--out", out, "--version", version, "--json")
        assert answer.code == 0, answer
        assert held(out) == bits(run.states[version])
        assert version_of(out) == version
        assert surplus(out) == set()
    if most is not None:
        assert answer.json["bytes"] < most * whole  # by patches, not by a keyframe


def test_a_version_of_another_layout_is_written_anew(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert pulse("pull", "--out", out).code == 0
    larger = run.states[-1] | {"extra.weight": run.states[-1]["norm.weight"]}
    assert pulse("push", "--step", 5, save(tmp_path / "larger.safetensors", larger)).code == 0
    for version, state in ((5, larger), (4, run.states[4])):
        assert pulse("pull", "--out", out, "--version", version).code == 0
        assert held(out) == bits(state)
        assert surplus(out) == set()


@pytest.mark.slow
def test_transformers_opens_a_pulled_folder(pulse: Pulse, at: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, vocab_size=64, num_key_value_heads=2, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(at / "saved")
    config.save_pretrained(at / "out")
    assert pulse("push", "--step", 0, at / "saved").code == 0
    assert pulse("pull", "--out", at / "out").code == 0
    loaded = transformers.LlamaForCausalLM.from_pretrained(at / "out", dtype=torch.bfloat16)
    assert all(torch.equal(ours, model.state_dict()[name]) for name, ours in loaded.state_dict().items())
