"""The page's examples run, with a small model and a folder in place of the bucket."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trl.experimental.async_grpo

import pulse_registry
from tests.docs.blocks import ROOT, blocks
from tests.engines.trl.models import differing, llama, prompts, reward, rounded, tokenizer
from tests.engines.trl.test_async_grpo import Worker, configuration, sync


def run(example: int, given: dict[str, Any]) -> dict[str, Any]:
    """Run one of the page's examples with what it takes for given; return all names."""
    page = ROOT / "docs" / "how-to" / "train-with-trl.md"
    found = [block.code for block in blocks(page.read_text(encoding="utf-8")) if block.language == "python"]
    assert len(found) == 2
    assert "s3://bucket/policies" in found[example]
    exec(compile(found[example].replace("s3://bucket/policies", "registry"), str(page), "exec"), given)
    return given


def test_the_first_example_pushes_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(0, {"model": llama(), "reward": reward, "dataset": prompts(), "tokenizer": tokenizer()})
    with pulse_registry.open("registry", run="math-7b", create=False) as worker:
        assert [version.step for version in worker.versions()] == [0, 1, 2]


def test_the_second_example_pushes_what_async_grpo_sends_with_the_models_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer is TRL's; it is given what trains on a CPU, and a worker that makes no completions."""
    monkeypatch.chdir(tmp_path)
    for part in (llama(), tokenizer()):
        part.save_pretrained("Qwen3-8B")
    calls: list[str] = []
    real = partial(
        trl.experimental.async_grpo.AsyncGRPOTrainer, args=configuration(Path("out")), rollout_worker=Worker(calls)
    )
    with (
        patch("trl.experimental.async_grpo.AsyncGRPOTrainer", real),
        patch("torch.cuda.get_device_name", lambda *_: "none"),
    ):
        made = run(1, {"reward": reward, "dataset": prompts()})["trainer"]
    sync(made)
    made.weight_transfer.destroy()
    assert calls == ["model version 1", "start", "model version 2"]
    with pulse_registry.open("registry", run="math-7b", create=False) as worker:
        first, second = worker.versions()
        assert (first.changed, second.changed) == (first.cells, 7)
        assert not differing(worker.load("latest", framework="torch"), rounded(dict(made.model.named_parameters())))
        assert {"config.json", "tokenizer.json"} <= worker.files("latest").keys()
