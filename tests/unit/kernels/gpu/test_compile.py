"""Every kernel compiles for the GPUs that we name, with no GPU at hand.

For Hopper, ``make compile-kernels`` does it, with the oldest Triton and the newest, once in each run of .ci/run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pulse_registry.runtime.placement import OLDEST_TRITON

ROOT = Path(__file__).parents[4]
TARGETS = ("90", "80", "100")
OTHERS = TARGETS[1:]
CI = (ROOT / ".ci" / "run").read_text()


@pytest.fixture
def compiling(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which kernels are compiled, not interpreted, and nothing is found compiled."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return environment | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}


def check(environment: dict[str, str], *arguments: str) -> None:
    command = [sys.executable, "-m", "tests.unit.kernels.gpu.compiled", *arguments]
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("compiled ")


def test_ci_compiles_the_kernels_with_the_oldest_triton_that_is_used_and_with_the_newest() -> None:
    assert re.search(r"^timeout .* make .*\bcompile-kernels\b", CI, re.MULTILINE)
    planned = subprocess.run(["make", "-n", "compile-kernels"], cwd=ROOT, capture_output=True, text=True, check=True)
    oldest = ".".join(map(str, OLDEST_TRITON))
    assert f"for version in {oldest} newest" in planned.stdout


@pytest.mark.sweep
def test_every_kernel_compiles_for_other_nvidia_gpus(compiling: dict[str, str]) -> None:
    check(compiling, *OTHERS)


@pytest.mark.sweep
def test_every_launch_compiles_for_nvidia_and_amd(compiling: dict[str, str]) -> None:
    check(compiling, "all", *TARGETS, "gfx942")


def test_importing_the_kernels_imports_neither_triton_nor_torch(compiling: dict[str, str]) -> None:
    code = "import sys, pulse_kernels, pulse_registry; print([m for m in ('torch', 'triton') if m in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], env=compiling, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"
