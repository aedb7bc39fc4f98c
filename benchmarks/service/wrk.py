"""GET requests as fast as they are answered, or at a given pace: `wrk`, which costs the machine little itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("load.lua")


class WrkFailed(Exception):
    """`wrk` is not installed, or it did not run."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of wrk saw; ``not_2xx`` and ``broken`` count answers that were errors, and none at all."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    bytes: int
    not_2xx: int
    broken: int

    @property
    def per_second(self) -> float:
        """Answers a second."""
        return self.requests / self.seconds


def get(url: str, token: str | None, *, connections: int, seconds: int, pause_ms: int = 0) -> Load:
    """Send GETs over so many connections, each waiting for its answer, then ``pause_ms`` on average.

    Raises:
        WrkFailed: wrk is not there, or can't reach the URL.
    """
    program = shutil.which("wrk")
    if program is None:
        raise WrkFailed("wrk is not installed: apt-get install wrk")
    command = [program, "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", str(SCRIPT)]
    if token is not None:
        command += ["-H", f"Authorization: Bearer {token}"]
    done = subprocess.run(
        [*command, url],
        env=os.environ | {"PULSE_LOAD_PAUSE_MS": str(pause_ms)},
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("JSON ")), None)
    if done.returncode or line is None:
        raise WrkFailed(f"wrk ended with {done.returncode}: {done.stderr or done.stdout}")
    return Load(**json.loads(line.removeprefix("JSON ")))
