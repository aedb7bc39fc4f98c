"""The service as a process of its own, and what it takes: memory, file descriptors, processor time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.service import pulse_serve


@dataclass(frozen=True, slots=True)
class Service:
    """A running service."""

    url: str
    token: str
    pid: int

    @property
    def rss_bytes(self) -> int:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def descriptors(self) -> int:
        """Open file descriptors."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def cpu_seconds(self) -> float:
        """Seconds of processor time, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def service(root: str, folder: Path, *, settings: Mapping[str, str]) -> Iterator[Service]:
    """Run ``pulse serve`` over a root, with one admin token and no limit on its rate or its waiters.

    Args:
        root: the registry's URL.
        folder: for the token file and the log.
        settings: more of the service's environment: ``PULSE_*`` settings, credentials of the bucket.
    """
    tokens = folder / "tokens.json"
    pulse = str(Path(sys.executable).with_name("pulse"))
    made = subprocess.run(
        [pulse, "token", "new", "--name", "load", "--scope", "admin", "--run", "*", "--file", str(tokens), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    unlimited = dict.fromkeys(("PULSE_RATE_PER_S", "PULSE_RATE_BURST", "PULSE_MAX_PENDING"), "1000000")
    environment = unlimited | dict(settings)
    with pulse_serve(root, folder, "--tokens", str(tokens), environment=environment) as served:
        yield Service(served.url, json.loads(made.stdout)["token"], served.process.pid)
