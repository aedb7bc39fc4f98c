"""The lines of vLLM's page lead from nothing to a server that follows a run."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import pulse_registry
from pulse_registry import PushOptions
from tests.docs.blocks import ROOT, blocks
from tests.engines.support.engine import ENVIRONMENT, START_S
from tests.engines.support.fixtures import UNPACKED, History
from tests.engines.support.models import LLAMA, changed, random_weights, write_files

PAGE = ROOT / "docs" / "how-to" / "follow-with-vllm.md"


@pytest.fixture
def run(tmp_path: Path) -> History:
    """Versions 0 to 2, which carry the model's small files."""
    made, first = History(tmp_path / "policies", "math-7b", tmp_path), random_weights(LLAMA)
    with pulse_registry.open(made.url, run=made.run, push=PushOptions(dtype="keep")) as registry:
        registry.push(0, first, files=write_files(LLAMA, tmp_path / "files"))
    made.states.append(first)
    for seed in (1, 2):
        made.push(changed(made.states[-1], seed, 0.02))
    return made


def lines(port: int) -> str:
    """Return the page's lines, with a folder for the bucket, version 1 for 40, and vLLM for CPUs as the page has it."""
    page = PAGE.read_text(encoding="utf-8")
    found = next(block.code for block in blocks(page) if block.language == "console")
    assert len(found.splitlines()) <= 10
    other = "python -m vllm.entrypoints.openai.api_server --model model"
    assert f"`{other}`, in place of `vllm serve model`" in page
    for theirs, ours in (("s3://bucket/policies", "policies"), ("vllm serve model", other), ("40", "1")):
        assert theirs in found
        found = found.replace(theirs, ours)
    found = found.replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace(
        "--host 127.0.0.1", f"--host 127.0.0.1 --port {port}"
    )
    return re.sub(r"^\$ ", "", found, flags=re.MULTILINE)


@contextmanager
def shell(script: str, folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run lines in a shell of its own; all that they have started ends with the block."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | ENVIRONMENT | UNPACKED | {"PATH": path}
    with log.open("w") as out:
        process = subprocess.Popen(
            ["bash", "-euc", script], cwd=folder, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_the_pages_lines_lead_to_a_server_that_follows(run: History) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, log = f"http://127.0.0.1:{port}", run.folder / "log"

    def serves(version: int) -> bool:
        """Whether the server tells of a version, and each live cell is the version's."""
        try:
            told = httpx.get(f"{url}/weight_info", trust_env=False, timeout=START_S).json()["weight_version"]
        except httpx.TransportError:
            return False
        if told != str(version):
            return False
        body = {"method": "pulse_verify", "args": []}
        answer = httpx.post(f"{url}/collective_rpc", json=body, trust_env=False, timeout=START_S).json()
        assert answer["results"] == [str(version)]
        return True

    with shell(lines(port), run.folder, log) as process:
        for version in (2, 3):
            if version == 3:
                run.push(changed(run.states[-1], 3, 0.02))
            for _ in range(8 * START_S):
                if serves(version):
                    break
                try:
                    process.wait(0.25)
                    break
                except subprocess.TimeoutExpired:
                    continue
            assert serves(version), log.read_text(errors="replace")[-6000:]
