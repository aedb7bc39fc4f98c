"""``pulse serve`` as a process of its own, on a free port, gone when a test is over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import HANG_S, NEVER_S


@dataclass(frozen=True, slots=True)
class Served:
    """A running service."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def stop(self, signal: int) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(signal)
        return self.process.wait(HANG_S)


@contextmanager
def serving(root: str, folder: Path, *options: str, environment: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Serve a root; ``folder`` takes the log. Settings that are not given have their defaults, but two deadlines."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("PULSE_")}
    known |= {"PULSE_STOP_SECONDS": f"{NEVER_S:g}", "PULSE_WAIT_MAX_S": f"{NEVER_S:g}"}
    log = folder / "serve.log"
    pulse = str(Path(sys.executable).with_name("pulse"))
    command = [pulse, "serve", "--root", root, "--port", "0", "--json", *options]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command, env={**known, **(environment or {})}, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    try:
        stdout = process.stdout
        line = stdout.readline() if stdout is not None else ""
        if not line:
            raise RuntimeError(f"pulse serve ended with {process.wait(HANG_S)}: {log.read_text()}")
        yield Served(json.loads(line)["url"], process, log)
    finally:
        process.kill()
        process.wait(HANG_S)
        if process.stdout is not None:
            process.stdout.close()
