"""The tutorial works as it is written: its chapters in order, in one folder, over a bucket and the service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.docs.test_examples import ROOT, blocks
from tests.support.servers import S3Bucket, free_ports

FOLDER = ROOT / "docs" / "tutorial"
CHAPTERS = ("trainer", "worker", "bucket", "service")
OUTPUT = {
    "python trainer.py policies": r"version 9: \d+ cells changed",
    "python worker.py policies": r"version 0: \d+ bytes\nversion 9: \d+ cells, \d+ bytes\nverified",
    "python trainer.py http": r"version 19: \d+ cells changed",
    "python worker.py http": r"version 0: \d+ bytes\nversion 19: \d+ cells, \d+ bytes\nverified",
}
"""What some commands print."""


def run(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euc", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_chapters_run_one_after_the_other(tmp_path: Path, moto_bucket: S3Bucket) -> None:
    (port,), bucket = map(str, free_ports(1)), moto_bucket.server.new_bucket()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    server = moto_bucket.server
    place = {"AWS_ENDPOINT_URL": server.endpoint, "AWS_REGION": server.region}
    environment = {**os.environ, **server.environment, **place, "PATH": path}
    served: list[subprocess.Popen[str]] = []
    printed = ""
    try:
        for chapter in CHAPTERS:
            for block in blocks((FOLDER / f"{chapter}.md").read_text(encoding="utf-8")):
                if block.title:
                    (tmp_path / block.title).write_text(block.code, encoding="utf-8")
                if not block.runs or block.language != "console":
                    continue
                for line in re.findall(r"(?m)^\$ (.*)$", block.code):
                    command = line.replace("my-bucket", bucket.name).replace("8080", port)
                    if command.startswith("pulse serve"):
                        served.append(serve(command, tmp_path, environment))
                        continue
                    output = run(command, tmp_path, environment)
                    printed += f"{re.sub('PULSE_TOKEN=[^ ]* [^ ]*[ )]*', '', command)}\n{output}"
    finally:
        for process in served:
            process.terminate()
            process.communicate()
    for command, pattern in OUTPUT.items():
        assert re.search(rf"{command}.*\n{pattern}", printed), printed


def serve(command: str, folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command.split(), cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("serving at")
    return process
