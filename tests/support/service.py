"""The service for tests: ``pulse serve`` in a process of its own, on a free port, over any root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from pulse_server.tokens import TokenFile, new_token
from tests.support.waiting import HANG_S, NEVER_S, until

_LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it ends with the thread that started it, however that ends
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent has ended")
from pulse_registry.cli import main
sys.exit(main(sys.argv[2:]))
"""
_PROMPT = {"PULSE_POLL_SECONDS": "0.05", "PULSE_RATE_PER_S": "0", "PULSE_STOP_SECONDS": f"{NEVER_S:g}"}
"""Looks at the log more often than a real one: tests wait for it. Stops when all is done, on a busy machine too."""


class Service:
    """A service over a root, with a file of tokens; it can be stopped and started again on the same port."""

    def __init__(self, root: str, folder: Path, environment: Mapping[str, str]) -> None:
        """Prepare; nothing runs yet.

        Args:
            root: the registry.
            folder: for the tokens' file and the log.
            environment: of the process, besides this one's; keys of a bucket, settings.
        """
        self.root, self.folder = root, folder
        self._environment = {**os.environ, **_PROMPT, **environment}
        self._process: subprocess.Popen[str] | None = None
        self.tokens = folder / "tokens.json"
        self.url = ""
        self.token = self.new_token("publish")

    def new_token(self, scope: str, runs: tuple[str, ...] = ("*",), *, seconds: float | None = None) -> str:
        """Add a token that the service knows within a second; at once if it is not running."""
        now = datetime.now(UTC)
        expires_at = None if seconds is None else now + timedelta(seconds=seconds)
        text, entry = new_token(scope, scope, runs, now=now, expires_at=expires_at)
        TokenFile(self.tokens).add(entry)
        return text

    def revoke(self, token: str) -> None:
        """Take a token away; the service knows within a second."""
        TokenFile(self.tokens).remove(token.split("_")[1])

    def await_token(self, token: str, status: int = 200) -> None:
        """Wait until the service, which looks at its tokens' file now and then, answers a token with a status."""
        with httpx.Client(headers={"Authorization": f"Bearer {token}"}, verify=False, timeout=HANG_S) as client:
            until(lambda: client.get(f"{self.url}/v1/token").status_code == status)

    def start(self) -> None:
        """Start it and wait until it serves."""
        port = str(urlsplit(self.url).port or 0)
        command = ["serve", "--root", self.root, "--port", port, "--tokens", str(self.tokens), "--json"]
        with (self.folder / "service.log").open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCHER, str(os.getpid()), *command],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError(f"the service did not start: {self.log}")
        self.url = json.loads(line)["url"]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop it, and return its exit status."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(how)
        try:
            return process.wait(timeout=HANG_S)
        finally:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()

    @property
    def log(self) -> str:
        """What it has logged."""
        return (self.folder / "service.log").read_text()


@contextmanager
def serving(root: str, folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Service]:
    """Run a service, and end it."""
    service = Service(root, folder, environment or {})
    service.start()
    try:
        yield service
    finally:
        service.stop(signal.SIGKILL)
