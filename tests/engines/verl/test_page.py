"""The page's settings, read by verl's own configuration, lead to engines that bring the rollout to each version."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import CheckpointEngineConfig, RolloutConfig

import pulse_registry
from tests.docs.blocks import ROOT, blocks
from tests.engines.verl.test_checkpoint_engine import made_by, policy, sync


def test_the_settings_of_the_page_lead_to_engines_that_follow(tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "train-with-verl.md"
    [given] = [block.code for block in blocks(page.read_text(encoding="utf-8")) if block.language == "yaml"]
    assert "s3://bucket/policies" in given
    settings = OmegaConf.create(given.replace("s3://bucket/policies", str(tmp_path)))
    assert "checkpoint_engine" in {field.name for field in dataclasses.fields(RolloutConfig)}
    config = omega_conf_to_dataclass(settings.actor_rollout_ref.rollout.checkpoint_engine, CheckpointEngineConfig)
    made, weights = made_by(config), policy()
    for step in (1, 2):
        weights["model.embed.weight"][step, 0] += 1
        _, received = sync(made, weights, step)
        for found in received:
            assert found.keys() == weights.keys()
            assert all(torch.equal(found[n].view(torch.int16), weights[n].view(torch.int16)) for n in weights)
    with pulse_registry.open(tmp_path, run="math-7b", create=False) as reader:
        assert [version.step for version in reader.versions()] == [1, 2]
