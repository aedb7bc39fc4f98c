"""examples/ray on a local Ray: actors follow the trainer's versions, and one that is killed is whole again."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

import pulse_registry
from tests.docs.blocks import ROOT, blocks

EXAMPLE = ROOT / "examples" / "ray" / "rollouts.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Start a local Ray of two cores, and import the example, as its processes do."""
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
    try:
        yield importlib.import_module(EXAMPLE.stem)
    finally:
        ray.shutdown()
        sys.modules.pop(EXAMPLE.stem, None)


def process(actor: Any) -> int:
    """Return the process that an actor is in."""
    found: int = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
    return found


def test_a_rollout_that_is_killed_comes_back_with_the_newest_version(example: Any, tmp_path: Path) -> None:
    root = str(tmp_path)
    trainer = example.Trainer.remote(root)
    assert ray.get(trainer.finish.remote()) == 0
    actors = [example.Rollout.remote(root, f"rollout-{number}") for number in range(3)]
    batches = ray.get([actor.sample.remote(32) for actor in actors])
    assert [batch.version for batch in batches] == [0, 0, 0]
    before = [process(actor) for actor in actors]
    for batch in batches:
        ray.get(trainer.step.remote(batch))
    version = ray.get(trainer.finish.remote())
    assert version == 3

    asked = actors[0].sample.remote(32)
    ray.kill(actors[0], no_restart=False)
    assert ray.get(asked).version == version
    assert ray.get(actors[0].sample.remote(32)).version == version
    after = [process(actor) for actor in actors]
    assert after[0] != before[0]
    assert after[1:] == before[1:]

    with pulse_registry.open(root, run=example.RUN, create=False) as reader:
        stored = reader.load(version, framework="torch")
        assert [entry.metadata for entry in reader.versions()][1:] == [
            {"reward": batch.rewards.mean().item(), "sampled_by": 0} for batch in batches
        ]
    held = ray.get([trainer.weights.remote(), *(actor.weights.remote(version) for actor in actors)])
    for weights in held:
        assert weights.keys() == stored.keys()
        assert all(torch.equal(weights[name].view(torch.int16), stored[name].view(torch.int16)) for name in stored)


def test_the_example_ends_with_all_rollouts_at_the_last_version(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), str(tmp_path), "--steps", "20", "--rollouts", "2"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 rollouts hold version 20, bit for bit" in done.stdout


def test_the_page_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs" / "how-to" / "run-on-ray.md").read_text()
    [shown] = [block.code for block in blocks(page) if block.language == "python"]
    assert shown in EXAMPLE.read_text()
