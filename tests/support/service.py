"""The service as a process of its own, as ``pulse serve`` starts it, on a free port, gone when a test is over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from pulse_server.tokens import TokenFile, new_token
from tests.support.servers import launched
from tests.support.waiting import HANG_S, NEVER_S, until

_PROMPT = {"PULSE_POLL_SECONDS": "0.05", "PULSE_RATE_PER_S": "0", "PULSE_STOP_SECONDS": f"{NEVER_S:g}"}
"""Looks at the log more often than a real one: tests wait for it. Stops when all is done, on a busy machine too."""


@dataclass(frozen=True, slots=True)
class Served:
    """A running service, and the file that it logs to."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def stop(self, how: int) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(how)
        try:
            return self.process.wait(HANG_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def start(root: str, log: Path, *options: str, environment: Mapping[str, str], port: int = 0) -> Served:
    """Start ``pulse serve`` over a root, and wait until it says where; it ends with the thread that started it."""
    pulse = str(Path(sys.executable).with_name("pulse"))
    command = launched([pulse, "serve", "--root", root, "--port", str(port), "--json", *options])
    with log.open("a") as stderr:
        process = subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, stderr=stderr, text=True)
    line = process.stdout.readline() if process.stdout is not None else ""
    if not line:
        Served("", process, log).kill()
        raise RuntimeError(f"pulse serve ended with {process.returncode}: {log.read_text()}")
    return Served(json.loads(line)["url"], process, log)


@contextmanager
def pulse_serve(
    root: str, folder: Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """Serve a root; ``folder`` takes the log. Settings that are not given have their defaults, but two deadlines."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("PULSE_")}
    known |= {"PULSE_STOP_SECONDS": f"{NEVER_S:g}", "PULSE_WAIT_MAX_S": f"{NEVER_S:g}"}
    running = start(root, folder / "serve.log", *options, environment=known | dict(environment or {}))
    try:
        yield running
    finally:
        running.kill()


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
        self._served: Served | None = None
        self._log = folder / "service.log"
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
        port = urlsplit(self.url).port or 0
        tokens = ("--tokens", str(self.tokens))
        self._served = start(self.root, self._log, *tokens, environment=self._environment, port=port)
        self.url = self._served.url

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop it, and return its exit status."""
        if self._served is None:
            return 0
        running, self._served = self._served, None
        return running.stop(how)

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text()


@contextmanager
def serving(root: str, folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Service]:
    """Run a service, and end it."""
    service = Service(root, folder, environment or {})
    service.start()
    try:
        yield service
    finally:
        service.stop(signal.SIGKILL)
