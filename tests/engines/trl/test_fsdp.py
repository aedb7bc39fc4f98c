"""A Trainer of two ranks, sharded by FSDP2 through accelerate, pushes by rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

import pulse_registry
from tests.engines.trl.models import differing

ROOT = Path(__file__).resolve().parents[3]


def test_two_ranks_push_what_they_hold_and_it_is_the_policy_bit_for_bit(tmp_path: Path) -> None:
    root, out = tmp_path / "registry", tmp_path / "out"
    out.mkdir()
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"),
        *(str(Path(__file__).with_name("fsdp_ranks.py")), str(root), str(out)),
    ]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not ended.returncode, ended.stdout[-4000:] + ended.stderr[-8000:]
    seen = torch.load(out / "seen.pt")
    with pulse_registry.open(str(root), run="fsdp", create=False) as worker:
        assert [version.step for version in worker.versions()] == [0, 1, 2, 3]
        for version in worker.versions():
            assert not differing(worker.load(version.version, framework="torch"), seen[version.step])
