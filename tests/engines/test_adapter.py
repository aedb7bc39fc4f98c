"""vLLM's HTTP server serves each version of a run of adapters, which ``pulse follow`` loads by its endpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import pulse_registry
from pulse_registry import PushOptions
from tests.engines.support.engine import Answer
from tests.engines.support.fixtures import PROMPTS, UNPACKED, Start
from tests.engines.support.models import HEAD, HEADS, HIDDEN, KV_HEADS, LAYERS, LLAMA, random_weights, write_model
from tests.engines.support.server import Server

RANK = 8
CONFIG = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "model",
    "r": RANK,
    "lora_alpha": 16,
    "lora_dropout": 0.0,
    "bias": "none",
    "target_modules": ["q_proj", "v_proj"],
}


def adapter(seed: int) -> dict[str, torch.Tensor]:
    """Return an adapter's tensors by PEFT's names, large enough that versions differ in what they generate."""
    made, found = torch.Generator().manual_seed(seed), {}
    for layer in range(LAYERS):
        for name, rows in (("q_proj", HEADS * HEAD), ("v_proj", KV_HEADS * HEAD)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_"
            found[f"{at}A.weight"] = 0.2 * torch.randn(RANK, HIDDEN, generator=made)
            found[f"{at}B.weight"] = 0.2 * torch.randn(rows, RANK, generator=made)
    return {name: tensor.bfloat16() for name, tensor in found.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(LLAMA, random_weights(LLAMA), tmp_path_factory.mktemp("base") / "model")


@contextmanager
def serving(model: Path, log: Path) -> Iterator[Server]:
    settings = ("--enable-lora", "--max-lora-rank", str(RANK), "--max-loras", "2")
    environment = UNPACKED | {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    server = Server(model, log, environment, *settings, follows=False)
    try:
        server.start()
        yield server
    finally:
        server.close()


def answers(server: Server, name: str | None) -> list[Answer]:
    return [server.complete(prompt, model=name) for prompt in PROMPTS]


def test_each_version_answers_as_a_fresh_engine_that_loads_its_folder(
    model: Path, tmp_path: Path, start: Start
) -> None:
    root, pulse = str(tmp_path / "registry"), str(Path(sys.executable).with_name("pulse"))
    of_run = ["--root", root, "--run", "lora"]

    def push(step: int) -> None:
        with pulse_registry.open(root, run="lora", push=PushOptions(dtype="keep")) as trainer:
            files = {"adapter_config.json": json.dumps(CONFIG).encode()}
            trainer.push(step, adapter(step), files=files if step == 0 else None)

    push(0)
    command = [pulse, "follow", *of_run, "--adapter", "policy", "--folder", str(tmp_path / "adapters"), "--json"]
    followed: list[list[Answer]] = []
    with serving(model, tmp_path / "log") as server:
        base = answers(server, None)
        with subprocess.Popen([*command, "--engine", f"vllm={server.url}"], stdout=subprocess.PIPE) as sidecar:
            try:
                assert sidecar.stdout is not None
                for version in (0, 1, 2):
                    if version:
                        push(version)
                    line = json.loads(sidecar.stdout.readline())
                    assert (line["changed"], line.get("version")) == (True, version), line
                    followed.append(answers(server, "policy"))
            finally:
                sidecar.terminate()
        assert answers(server, None) == base
    folders = [tmp_path / f"pulled-{version}" for version in range(3)]
    for version, folder in enumerate(folders):
        subprocess.run([pulse, "pull", *of_run, "--version", str(version), "--out", str(folder)], check=True)
    fresh = start(model, UNPACKED, enable_lora=True, max_lora_rank=RANK, max_loras=2)
    for folder, told in zip(folders, followed, strict=True):
        assert [answer for prompt in PROMPTS for answer in fresh.generate([prompt], adapter=folder)] == told
    assert all(one != another for one in [base, *followed] for another in [base, *followed] if one is not another)
