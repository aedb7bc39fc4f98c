"""``fireworks-delta-compression`` from PyPI, run over files in an environment of its own.

The environment is made once, under the user's cache folder, and used again; where it can't be made, the reason is
told and the rest of the benchmark goes on. The package and torch are pinned; neither ever meets our environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path
from typing import Any

PACKAGE = "fireworks-delta-compression==0.1.0"
TORCH = "torch==2.13.0"
"""In a pip call of its own, before the package, as in the Makefile: else pip may fetch a build for GPUs."""
FORMAT = "arc_v3"
NAME = f"Fireworks {FORMAT}"
_INSTALL_SECONDS, _RUN_SECONDS = 900, 1800


class PeerUnavailable(Exception):
    """A peer can't be had here; the message says why."""


def default_home() -> Path:
    """Return where the environment is kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "pulse-registry" / "peers" / PACKAGE.replace("==", "-")


def environment(home: Path, *, install: bool = True) -> Path:
    """Return the Python of the peer's environment; make it where it is missing and ``install`` says so.

    Raises:
        PeerUnavailable: it is not there and is not to be made, or pip failed.
    """
    python, ready = home / "bin" / "python", home / "ready"
    if ready.exists():
        return python
    if not install:
        raise PeerUnavailable(f"{PACKAGE} is not installed in {home}; run the benchmark without --no-install")
    venv.create(home, clear=True, with_pip=True)
    for packages in ([TORCH, "numpy"], [TORCH, PACKAGE]):
        _run([str(python), "-m", "pip", "install", "--quiet", *packages], _INSTALL_SECONDS)
    ready.touch()
    return python


def measure(python: Path, folder: Path, threads: int) -> list[dict[str, Any]]:
    """Code and decode all consecutive states of a folder; return bytes and seconds a step.

    Raises:
        PeerUnavailable: it failed, or did not give back what it was given.
    """
    script = Path(__file__).with_name("fireworks_run.py")
    out = _run([str(python), "-I", str(script), str(folder), FORMAT, str(threads)], _RUN_SECONDS)
    steps: list[dict[str, Any]] = json.loads(out)
    if not all(step["equal"] for step in steps):
        raise PeerUnavailable(f"{PACKAGE} did not give back the new state")
    return steps


def _run(command: list[str], limit_s: float) -> str:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnavailable(f"{PACKAGE}: {error}") from error
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:] or [f"exit status {ran.returncode}"]
        raise PeerUnavailable(f"{PACKAGE}: {' '.join(command[2:6])}: {last[0]}")
    return ran.stdout
