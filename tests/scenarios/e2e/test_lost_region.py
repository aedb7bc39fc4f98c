"""Two regions as an operator has them: SeaweedFS, services, a mirror, promotions; one is lost, and comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pulse_registry
from pulse_registry.errors import Fenced, NotFound, PulseError
from tests.support import servers
from tests.support.proxy import FaultName, FaultyProxy, Plan
from tests.support.servers import S3Server, launched
from tests.support.service import Service
from tests.support.waiting import HANG_S, until

pytestmark = pytest.mark.slow

RUN = "math-7b"


def weights(step: int) -> dict[str, np.ndarray]:
    cells = np.arange(4096, dtype=np.float32)
    cells[step % 97 :: 97] += step + 1
    return {"w": cells.astype(ml_dtypes.bfloat16)}


@dataclass
class Death(Plan):
    """Kills a process at its n-th request to any bucket, before or after that took effect."""

    at: int = 0
    acts: bool = False
    asked: int = 0
    process: subprocess.Popen[str] | None = None
    known: threading.Event = field(default_factory=threading.Event)

    def draw(self) -> tuple[FaultName | None, float]:
        """Count a request."""
        self.known.wait(HANG_S)
        self.asked += 1
        if self.process is None or self.asked < self.at:
            return None, 0.0
        if self.asked == self.at and self.acts:
            return "drop", 0.0  # the server acts; what the process asks next kills it
        self.process.kill()
        return "reset", 0.0


class Region:
    """A server of its own, a proxy in front of it, and a bucket: the URL of its root, and another past the proxy."""

    def __init__(self, server: S3Server, proxy: FaultyProxy) -> None:
        self.server, self.proxy = server, proxy
        self.bucket = server.new_bucket()
        self.direct = self.bucket.url("policies")
        self.url = self.direct.replace(server.endpoint, proxy.endpoint)

    def forget(self) -> None:
        """Delete what it has of the run, as an operator does."""
        client = self.server.client()
        listed = client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket.name, Prefix=f"policies/{RUN}/")
        for entry in [entry for page in listed for entry in page.get("Contents", ())]:
            client.delete_object(Bucket=self.bucket.name, Key=entry["Key"])

    @contextmanager
    def away(self) -> Iterator[None]:
        """Break every connection to it."""
        before, self.proxy.plan = self.proxy.plan, Plan(share=1.0, faults=("reset",))
        try:
            yield
        finally:
            self.proxy.plan = before


def region(stack: ExitStack) -> Region:
    server = stack.enter_context(servers.seaweedfs())
    return Region(server, stack.enter_context(FaultyProxy(server.endpoint)))


@pytest.fixture(scope="module")
def regions() -> Iterator[tuple[Region, Region]]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as environment:
        us, eu = region(stack), region(stack)
        for name, value in us.server.environment.items():
            environment.setenv(name, value)
        yield us, eu


@contextmanager
def started(log: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command as a process of its own."""
    with log.open("a") as out:
        command = launched([str(Path(sys.executable).with_name("pulse")), *arguments])
        process = subprocess.Popen(command, env=dict(os.environ), stdout=out, stderr=out, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def pulse(folder: Path, *arguments: str) -> tuple[int, Any]:
    """Run a command to its end; return its exit code and the document that it printed."""
    answers = folder / "answer.json"
    answers.unlink(missing_ok=True)
    with started(answers, *arguments, "--json") as process:
        code = process.wait(HANG_S)
    lines = [line for line in answers.read_text().splitlines() if line.startswith("{")]
    return code, json.loads(lines[-1]) if lines else None


def pulled(registry: pulse_registry.Registry) -> tuple[int, bytes]:
    into = registry.load(framework="numpy")
    return registry.version().version, into["w"].tobytes()


class Trainer:
    """Pushes until it is fenced, in a thread."""

    def __init__(self, root: str, first: int) -> None:
        self.root, self.first = root, first
        self.acknowledged: dict[int, str] = {}
        self.ended: PulseError | None = None
        self._pace = threading.Event()
        self._thread = threading.Thread(target=self._push, name="trainer", daemon=True)

    def start(self) -> None:
        """Begin; return once something was acknowledged."""
        self._thread.start()
        until(lambda: self.acknowledged or self.ended)

    def end(self) -> None:
        """Wait until it was fenced."""
        self._thread.join(HANG_S)
        assert isinstance(self.ended, Fenced), self.ended

    def _push(self) -> None:
        try:
            with pulse_registry.open(self.root, run=RUN) as registry:
                step = self.first
                while True:
                    result = registry.push(step, weights(step))
                    self.acknowledged[result.version] = result.digest
                    step += 1
                    self._pace.wait(0.5)
        except PulseError as error:
            self.ended = error


@pytest.fixture
def run_of_its_own(regions: tuple[Region, Region]) -> Iterator[tuple[Region, Region]]:
    """The regions, and none of the run in them before and after."""
    yield regions
    for one in regions:
        one.forget()


# A promotion makes some hundreds of requests.
@pytest.mark.parametrize("kills", [2, pytest.param(24, marks=pytest.mark.sweep)])
def test_promotions_that_are_killed_at_any_request_lose_no_version(
    run_of_its_own: tuple[Region, Region], tmp_path: Path, kills: int
) -> None:
    home, copy = run_of_its_own
    acknowledged: dict[int, str] = {}
    requests, killed = 0, 0
    for number in range(kills + 1):
        trainer = Trainer(home.direct, len(acknowledged))
        trainer.start()
        promotion = ("promote", copy.url, "--from", home.url, "--runs", RUN)
        death = Death(at=requests * number // (kills + 1), acts=bool(number % 2))
        home.proxy.plan = copy.proxy.plan = death
        with started(tmp_path / "promote.log", *promotion) as process:
            death.process = process if number else None
            death.known.set()
            killed += process.wait(HANG_S) == -signal.SIGKILL
        requests = requests or death.asked
        home.proxy.plan = copy.proxy.plan = Plan()
        code, told = pulse(tmp_path, *promotion)
        trainer.end()
        acknowledged |= trainer.acknowledged
        assert (code, told["runs"][0]["home"]) == (0, copy.url.partition("?")[0])
        with pulse_registry.open(copy.direct, run=RUN) as registry:
            assert {version.version: version.digest for version in registry.versions()} == acknowledged
            assert pulled(registry) == (max(acknowledged), weights(max(acknowledged))["w"].tobytes())
        home, copy = copy, home
    assert killed >= kills - 1  # the last may have come to its end before


def test_a_region_is_lost_and_the_run_goes_on_at_the_other_and_the_lost_one_comes_back(
    run_of_its_own: tuple[Region, Region], tmp_path: Path
) -> None:
    us, eu = run_of_its_own
    with ExitStack() as stack:
        with pulse_registry.open(us.direct, run=RUN) as trainer:
            for step in range(3):
                trainer.push(step, weights(step))
            mirror = stack.enter_context(started(tmp_path / "mirror.log", "mirror", us.url, eu.url, "--follow"))
            until(lambda: version_at(eu) == 2)
            mirror.send_signal(signal.SIGTERM)
            assert mirror.wait(HANG_S) == 0
            service = Service(f"{eu.url},{us.url}", tmp_path, {})
            service.start()
            stack.callback(service.stop, signal.SIGKILL)
            behind_service = stack.enter_context(
                pulse_registry.open(service.url, run=RUN, token=service.token, name="rollout-0")
            )
            with_list = stack.enter_context(pulse_registry.open([us.url, eu.url], run=RUN))
            workers = (behind_service, with_list)
            for worker in workers:
                assert pulled(worker) == (2, weights(2)["w"].tobytes())
            for step in (3, 4):
                trainer.push(step, weights(step))  # which no copy gets
        lost = ("promote", eu.url, "--from", us.url, "--runs", RUN, "--lost")
        with us.away():
            code, told = pulse(tmp_path, *lost)
            assert (code, told["runs"][0]["error"]) == (7, "StoreUnavailable")
            for worker in workers:  # the newest record is the move, and only its new home says that none comes after it
                assert pulled(worker) == (2, weights(2)["w"].tobytes())
            with pulse_registry.open(service.url, run=RUN, token=service.token) as trainer:
                assert trainer.push(3, weights(30)).version == 3
            for worker in workers:
                assert pulled(worker) == (3, weights(30)["w"].tobytes())
        code, told = pulse(tmp_path, *lost)
        assert (code, told["runs"][0]["given_up"]) == (0, [3, 4])
        with pulse_registry.open(us.direct, run=RUN) as stray, pytest.raises(Fenced, match="moved it to"):
            stray.push(5, weights(5))
        assert pulse(tmp_path, "mirror", eu.url, us.url)[0] == 4  # forked
        us.forget()
        assert pulse(tmp_path, "mirror", eu.url, us.url)[0] == 0
        code, told = pulse(tmp_path, "verify", "--all", us.url)
        assert (code, told["whole"]) == (0, True)
        with pulse_registry.open(us.direct, run=RUN) as reader:
            assert pulled(reader) == (3, weights(30)["w"].tobytes())
        for worker in workers:
            assert pulled(worker) == (3, weights(30)["w"].tobytes())


def version_at(region: Region) -> int | None:
    with suppress(NotFound), pulse_registry.open(region.direct, run=RUN, create=False) as registry:
        return registry.version().version
    return None
