"""The tutorial works as it is written: its chapters in order, in one folder, over a bucket and the service."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulse_registry.cli import main
from pulse_registry.demo.bucket import free_ports
from tests.docs.blocks import ROOT, blocks
from tests.support.servers import S3Bucket

pytestmark = pytest.mark.slow

FOLDER = ROOT / "docs" / "tutorial"
CHAPTERS = ("trainer", "worker", "bucket", "service")
PUSHED = r"version {}: \d+ cells changed"
PULLED = r"version 0: \d+ bytes\nversion {}: \d+ cells, \d+ bytes\nverified"
PRINTED = [PUSHED.format(9), PULLED.format(9)] * 2 + [PUSHED.format(19), PULLED.format(19)]
"""What the programs print: to a folder, to a bucket, and ten versions more through the service."""


def commands() -> Iterator[str]:
    """Save the programs that the chapters show in the working folder, and return the commands, in order."""
    for chapter in CHAPTERS:
        for block in blocks((FOLDER / f"{chapter}.md").read_text(encoding="utf-8")):
            if block.title:
                Path(block.title).write_text(block.code, encoding="utf-8")
            elif block.runs:
                yield from re.findall(r"(?m)^\$ (.*)$", block.code)


def test_the_chapters_run_one_after_the_other(
    tmp_path: Path, moto_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    server, (port,), printed = moto_bucket.server, free_ports(1), []
    for name, value in {
        **server.environment,
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_REGION": server.region,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }.items():
        monkeypatch.setenv(name, value)
    service = None
    try:
        for line in commands():
            command = line.replace("my-bucket", moto_bucket.name).replace("8080", str(port))
            if token := re.match(r'PULSE_TOKEN="\$\(cat (\S+)\)" ', command):
                monkeypatch.setenv("PULSE_TOKEN", Path(token[1]).read_text().strip())
                command = command[token.end() :]
            words = shlex.split(command)
            if words[:2] == ["pulse", "serve"]:
                service = serving(words)
            elif words[0] == "python":
                capfd.readouterr()
                monkeypatch.setattr(sys, "argv", words[1:])
                runpy.run_path(words[1], run_name="__main__")
                printed.append(capfd.readouterr().out.strip())
            elif ">" in words:
                subprocess.run(["bash", "-euc", command], check=True, timeout=300)
            else:
                assert main(words[1:]) == 0
    finally:
        if service is not None:
            service.terminate()
            service.communicate()
    assert len(printed) == len(PRINTED)
    for output, pattern in zip(printed, PRINTED, strict=True):
        assert re.fullmatch(pattern, output)


def serving(words: list[str]) -> subprocess.Popen[str]:
    """Start the service; returns once it says that it serves."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("serving at")
    return process
