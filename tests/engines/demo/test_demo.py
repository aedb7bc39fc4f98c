"""The demo with engines, small: TRL trains a random Llama, two real vLLM servers follow it through SeaweedFS."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

STEPS = 6


def write_model(folder: Path) -> None:
    """Write a random Llama that knows numbers, and the signs of a sum."""
    words = ["<pad>", "<eos>", "<unk>", "<bos>", "+", "=", "?", "What", "is", *map(str, range(40))]
    plain = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    plain.pre_tokenizer = Whitespace()
    named = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>", "bos_token": "<bos>"}
    PreTrainedTokenizerFast(tokenizer_object=plain, **named).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1,
        bos_token_id=3, initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    write_model(folder / "model")
    command = [
        sys.executable,
        "-m",
        "pulse_registry.demo.vllm",
        "--model",
        str(folder / "model"),
        "--steps",
        str(STEPS),
    ]
    command += ["--learning-rate", "1e-3", "--out", str(folder / "out")]
    command += ["--trainer-python", os.environ["PULSE_TRAINERS_PYTHON"]]
    command += ["--engine-python", os.environ["PULSE_ENGINES_PYTHON"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        try:
            printed, _ = demo.communicate(timeout=1500)
        finally:
            demo.terminate()
    logs = {log.name: log.read_text(errors="replace")[-2000:] for log in (folder / "out" / "logs").glob("*.log")}
    assert demo.returncode == 0, (printed, logs)
    return json.loads((folder / "out" / "report.json").read_text()), folder / "out", printed


def test_both_engines_end_as_a_fresh_one(run: tuple[dict[str, Any], Path, str]) -> None:
    report = run[0]
    proof = report["proof"]
    assert report["ok"]
    assert proof["problems"] == []
    assert proof["version"] == STEPS
    assert proof["equal"] == {"engine-1": True, "engine-2": True}
    assert proof["control"] < proof["logprobs"] == 6 * 16
    assert proof["weights"]


def test_versions_are_followed_one_engine_joins_late(run: tuple[dict[str, Any], Path, str]) -> None:
    report = run[0]
    assert [version["version"] for version in report["versions"]] == list(range(STEPS + 1))
    assert {version["kind"] for version in report["versions"][1:]} == {"patch"}
    assert all(version["reward"] is not None for version in report["versions"][1:])
    engines = sorted(report["engines"], key=lambda engine: engine["name"])  # either may serve first
    assert [engine["loaded"] for engine in engines] == [0, 3]
    for engine in engines:
        assert [engine["loaded"], *(change["version"] for change in engine["changes"])][-1] == STEPS
        assert all(change["pause_s"] > 0 for change in engine["changes"])


def test_streams_went_on(run: tuple[dict[str, Any], Path, str]) -> None:
    streams = run[0]["streams"]
    assert streams["completions"] > 0
    assert streams["tokens"] == 96 * streams["completions"] == sum(streams["staleness"].values())


def test_it_leaves_a_report_a_chart_and_no_process(run: tuple[dict[str, Any], Path, str]) -> None:
    _, out, printed = run
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "Bit for bit:" in printed
    assert [line for line in command_lines() if str(out) in line] == []


def command_lines() -> Iterator[str]:
    """Yield the command lines of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes().decode(errors="replace")
