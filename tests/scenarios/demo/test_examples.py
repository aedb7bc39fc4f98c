"""The two example programs, as a new user runs them: side by side, on one folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pulse_registry
from tests.support.installed import needs

needs("torch")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.slow
def test_the_example_worker_follows_the_example_trainer(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "worker.py"), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        trainer = subprocess.run(
            [sys.executable, str(EXAMPLES / "trainer.py"), str(tmp_path)], capture_output=True, text=True, timeout=120
        )
        assert trainer.returncode == 0, trainer.stderr
        out, errors = worker.communicate(timeout=120)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0, errors

    registry = pulse_registry.open(str(tmp_path), run="example", create=False)
    versions = registry.versions()
    assert [version.step for version in versions] == list(range(10))
    assert out.splitlines()[-1] == f"verified {versions[-1].digest}"
    served = [int(line.removeprefix("version ").split(":")[0]) for line in out.splitlines()[:-1]]
    assert served == sorted(set(served)), "it may skip versions, and goes back to none"
    assert served[-1] == 9


@pytest.mark.parametrize("name", ["trainer.py", "worker.py"])
def test_an_example_stays_short_and_uses_the_public_api_alone(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    assert len(text.splitlines()) <= 30
    imports = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert set(imports) == {"import sys", "import torch", "import pulse_registry"}
