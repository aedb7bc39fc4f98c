"""The page's example runs, with a small model and a folder in place of the bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

import pulse_registry
from tests.docs.test_examples import ROOT, blocks
from tests.engines.trl.models import llama, prompts, reward, tokenizer


def test_the_first_example_of_the_page_pushes_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "how-to" / "train-with-trl.md"
    code = next(block.code for block in blocks(page.read_text(encoding="utf-8")) if block.language == "python")
    given = {"model": llama(), "reward": reward, "dataset": prompts(), "tokenizer": tokenizer()}
    exec(compile(code.replace("s3://bucket/policies", "registry"), str(page), "exec"), given)
    with pulse_registry.open("registry", run="math-7b", create=False) as worker:
        assert [version.step for version in worker.versions()] == [0, 1, 2]
