"""GRPOTrainers of two ranks, by DDP and by DeepSpeed, push together, and none waits for a rank that has failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pulse_registry
from pulse_registry.demo.place import meeting_point
from tests.engines.trl.models import differing

ROOT = Path(__file__).resolve().parents[3]
END_S = 600
"""Within which ranks end on a busy machine; one that waits for another that is gone does not."""


def train(root: Path, out: Path, *kinds: str, on_cpu: bool) -> list[subprocess.CompletedProcess[str]]:
    """Run both ranks, without an agent that ends one where the other fails."""
    meeting = meeting_point()  # its port is taken from now on
    out.mkdir()
    command = [sys.executable, str(Path(__file__).with_name("replica_ranks.py")), str(root), str(out), *kinds]
    place = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(meeting.port),
        "WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "ACCELERATE_USE_CPU": str(on_cpu).lower(),  # accelerate leaves DeepSpeed out where it is true
    }
    ranks = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | place | {"RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        ended = []
        for rank in ranks:
            printed, _ = rank.communicate(timeout=END_S)
            ended.append(subprocess.CompletedProcess(command, rank.returncode, printed))
        return ended
    finally:
        for rank in ranks:
            rank.kill()


def assert_equal(root: Path, run: str, out: Path) -> list[int]:
    """Compare each version with the weights that each rank had at its step, bit for bit; return the steps."""
    seen = [torch.load(out / f"{run}-{rank}.pt") for rank in (0, 1)]
    with pulse_registry.open(str(root), run=run, create=False) as worker:
        versions = list(worker.versions())
        assert len({version.digest for version in versions}) == len(versions)
        for version in versions:
            found = worker.load(version.version, framework="torch")
            for rank in seen:
                assert not differing(found, {name: rank[version.step][name] for name in found})
        return [version.step for version in versions]


def test_ranks_of_ddp_push_the_policy_bit_for_bit_and_none_hangs_when_one_fails(tmp_path: Path) -> None:
    root, out = tmp_path / "registry", tmp_path / "out"
    first, second = train(root, out, "ddp", "ddp-fails", on_cpu=True)
    assert assert_equal(root, "ddp", out) == [0, 1, 2, 3]
    assert first.returncode, first.stdout[-4000:]
    assert second.returncode, second.stdout[-4000:]
    assert "this rank fails on purpose" in second.stdout
    # The last push was under way when the rank ended: it is whole, or is not.
    assert assert_equal(root, "ddp-fails", out) in ([0, 1, 2], [0, 1, 2, 3])


def test_ranks_of_deepspeed_push_the_policy_bit_for_bit(tmp_path: Path) -> None:
    """ZeRO-1 and 2 by the callback; what ZeRO-3 has spread is refused, and pushed as slices."""
    root, out = tmp_path / "registry", tmp_path / "out"
    kinds = ("zero1", "zero2", "zero2-fp32", "zero3")
    for ended in train(root, out, *kinds, on_cpu=False):
        assert not ended.returncode, ended.stdout[-8000:]
    for kind in kinds[:3]:
        assert assert_equal(root, kind, out) == [0, 1, 2, 3]
    assert assert_equal(root, "zero3", out) == [1, 2, 3]
    with pytest.raises(pulse_registry.NotFound):
        pulse_registry.open(str(root), run="refused", create=False).version("latest")
