"""Small files on the command line: a pushed folder comes out of a pull byte for byte, and transformers loads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pulse_registry
from tests.support.checkpoints import bf16_model, save
from tests.support.command_line import Pulse

FILES = {
    "config.json": b'{\n  "model_type": "x"\n}\n',
    "generation_config.json": b"{}",
    "tokenizer.json": '{"é": 1}'.encode(),
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{% for m in messages %}{{ m }}{% endfor %}",
    "merges.txt": b"a b\r\n",
}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint's folder with its small files; PULSE_ROOT and PULSE_RUN name a new run."""
    monkeypatch.setenv("PULSE_ROOT", str(tmp_path / "registry"))
    monkeypatch.setenv("PULSE_RUN", "math")
    folder = tmp_path / "source"
    save(folder / "model.safetensors", bf16_model())
    for name, data in (FILES | {"modeling_x.py": b"import os\n"}).items():
        (folder / name).write_bytes(data)
    return folder


def test_a_pushed_folder_comes_out_byte_for_byte(pulse: Pulse, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    answer = pulse("push", source, "--step", 0, "--files", source)
    assert answer.code == 0, answer
    answer = pulse("pull", "--out", out)
    assert answer.code == 0, answer
    assert "files: chat_template.jinja, config.json, " in answer.out
    assert {name: (out / name).read_bytes() for name in FILES} == FILES
    assert not (out / "modeling_x.py").exists()
    [entry] = pulse("log", "--json").json
    described = pulse("inspect", f"objects/files/{entry['files']}", "--json").json
    assert described["type"] == "file set"
    assert [file["name"] for file in described["files"]] == sorted(FILES)
    for file in described["files"]:
        assert pulse("inspect", f"objects/files/{file['blake3']}", "--json").json["type"] == "file"


def test_code_goes_along_and_comes_out_by_name(pulse: Pulse, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    assert pulse("push", source, "--step", 0, "--also", "modeling_x.py").code == 2
    assert pulse("push", source, "--step", 0, "--files", source, "--also", "modeling_x.py").code == 0
    answer = pulse("pull", "--out", out)
    assert "may be code (--also NAME): modeling_x.py" in answer.out
    assert not (out / "modeling_x.py").exists()
    answer = pulse("pull", "--out", out, "--also", "modeling_x.py", "--json")
    assert answer.json["files"] == sorted([*FILES, "modeling_x.py"])
    assert (out / "modeling_x.py").read_bytes() == b"import os\n"
    assert pulse("pull", "--out", out, "--also", "other.py").code == 2


def test_what_stays_in_place_of_the_runs_is_said(pulse: Pulse, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "new"
    out.mkdir()
    (out / "config.json").write_bytes(b"mine")
    assert pulse("push", source, "--step", 0, "--files", source).code == 0
    answer = pulse("pull", "--out", out)
    assert "not replaced, since no pull has put them there: config.json" in answer.out
    assert (out / "config.json").read_bytes() == b"mine"


@pytest.mark.slow
def test_transformers_loads_the_folder_of_a_run_that_its_model_was_pushed_to(
    pulse: Pulse, source: Path, tmp_path: Path
) -> None:
    """The configuration goes along by itself, and is that of what was published: BF16."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": 32, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
    model: Any = transformers.LlamaForCausalLM(config)
    with pulse_registry.open(str(tmp_path / "registry"), run="math") as registry:
        registry.push(0, model)
    assert pulse("pull", "--out", tmp_path / "new").code == 0
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new", local_files_only=True)
    assert type(loaded) is type(model)
    assert loaded.dtype == torch.bfloat16
    assert json.loads((tmp_path / "new" / "config.json").read_bytes())["architectures"] == ["LlamaForCausalLM"]
    own, found = model.state_dict(), loaded.state_dict()
    assert own.keys() == found.keys()
    assert all(torch.equal(own[name].to(torch.bfloat16), found[name]) for name in own)
    assert loaded.generation_config.to_dict() == model.generation_config.to_dict()
