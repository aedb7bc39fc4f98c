"""The service under attack: how long another token's GETs of the latest version take meanwhile, and its pushes.

The attackers hold tokens of a run of their own, or none. They run on the same machine, at the lowest priority: so they
take what processor time the service leaves, and no more.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from blake3 import blake3

import pulse_registry
from benchmarks.results import Row
from benchmarks.service.attackers import ATTACKS, HOSTILE_LAYOUT, Target, argument
from benchmarks.service.process import Service
from benchmarks.service.steady import Steady
from benchmarks.service.suite import Say, _pusher, document
from pulse_registry.format import keys
from pulse_registry.store import open_store
from pulse_server.tokens import TokenFile, new_token
from tests.support.apps import store_objects
from tests.support.records import Script
from tests.support.service import pulse_serve

VICTIM, ATTACKED = "train", "a"
_MEMORY = 8 << 30
"""Of address space that the service may take beyond what it has: an attack that succeeds takes it, not the machine."""


@dataclass(frozen=True, slots=True)
class Attacked:
    """How long, in seconds without and with attacks; GETs a second, from one push to the next; the rest as `Target`."""

    seconds: float = 30.0
    pace: float = 50.0
    push_every_s: float = 0.5
    senders: int = 4
    stalled: int = 40
    body_bytes: int = 8 << 20
    names: int = 1_500
    attacks: str = ",".join(ATTACKS)


@dataclass(slots=True)
class Measured:
    """What was seen in one stretch of time."""

    latest: Steady
    pushes_s: list[float] = field(default_factory=list)
    failed_pushes: list[str] = field(default_factory=list)
    rss_mib: float = 0.0
    collections: float = 0.0
    attacks: dict[str, dict[str, int]] = field(default_factory=dict)


def run_attacked(folder: Path, size: Attacked, say: Say = print) -> dict[str, Any]:
    """Measure over a registry in ``folder``, first in quiet and then under attack; return the result document."""
    root = folder / "registry"
    root.mkdir()
    _fill(str(root))
    file = TokenFile(folder / "tokens.json")
    names = {"victim": ("read", VICTIM), "trainer": ("publish", VICTIM), "admin": ("admin", "*")}
    names |= {"reader": ("read", ATTACKED), "publisher": ("publish", ATTACKED)}
    tokens = {}
    for name, (scope, run) in names.items():
        tokens[name], entry = new_token(name, scope, (run,), now=datetime.now(UTC))
        file.add(entry)
    settings = {"PULSE_GC_SECONDS": "1", "PULSE_REPORT_SECONDS": "1"}
    with pulse_serve(str(root), folder, "--tokens", str(file.path), environment=settings) as served:
        service = Service(served.url, tokens["victim"], served.process.pid)
        host, port = served.address
        target = Target(
            host,
            port,
            tokens["reader"],
            tokens["publisher"],
            ATTACKED,
            size.senders,
            size.stalled,
            size.body_bytes,
            size.names,
            size.attacks,
        )
        resource.prlimit(service.pid, resource.RLIMIT_AS, (_address_space(service.pid) + _MEMORY,) * 2)
        with pulse_registry.open(
            served.url, run=VICTIM, token=tokens["trainer"], compute=pulse_registry.ComputeOptions(backend="reference")
        ) as registry:
            push = _pusher(registry)
            push()
            say(f"{size.seconds:g} s without attacks")
            quiet = _measure(service, size, push, tokens["admin"])
            say(f"{size.seconds:g} s under attack")
            attack = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.service.attackers", argument(target)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=lambda: os.nice(19),
            )
            try:
                attacked = _measure(service, size, push, tokens["admin"])
                attacked.attacks = json.loads(attack.communicate(timeout=120)[0])
            finally:
                attack.kill()
                attack.wait()
        alive = served.process.poll() is None
    return document("The service under attack", rows(quiet, attacked, alive), _details(quiet, attacked), size)


def rows(quiet: Measured, attacked: Measured, alive: bool) -> list[Row]:
    """Lay out the figures."""
    found = []
    for key, when, measured in (("quiet", "without attacks", quiet), ("attacked", "under attack", attacked)):
        latest, limit = measured.latest, ("at most", 100) if key == "attacked" else ()
        found += [
            Row(f"{key}_p50", f"GET latest {when}: p50", latest.at(0.5), "ms"),
            Row(f"{key}_p99", f"GET latest {when}: p99", latest.at(0.99), "ms", *limit),
            Row(f"{key}_max", f"GET latest {when}: the longest", latest.at(1.0), "ms"),
            Row(f"{key}_failed", f"GET latest {when}: errors", latest.failed, "", "at most", 0),
            Row(f"{key}_push_max", f"a push {when}: the longest", max(measured.pushes_s, default=float("inf")), "s"),
            Row(f"{key}_push_failed", f"pushes {when} that failed", len(measured.failed_pushes), "", "at most", 0),
            Row(f"{key}_rss", f"resident memory {when}, most", measured.rss_mib, "MiB"),
            Row(f"{key}_collected", f"collections {when}", measured.collections, "", "at least", 1),
        ]
    return [*found, Row("alive", "the service lives", int(alive), "", "at least", 1)]


def _fill(root: str) -> None:
    """Store a run of one version whose layout is hostile, as whoever had the bucket's keys, or was let, would have."""
    store = open_store(root)
    script = Script(ATTACKED).epoch().commit(layout=blake3(HOSTILE_LAYOUT).hexdigest())
    for record in script.records:
        store_objects(store, record)
        store.put(f"{ATTACKED}/{keys.record_key(record.seq)}", record.seal(), if_absent=True)
    store.put(f"{ATTACKED}/{keys.layout_key(blake3(HOSTILE_LAYOUT).hexdigest())}", HOSTILE_LAYOUT)


def _measure(service: Service, size: Attacked, push: Any, admin: str) -> Measured:
    measured, done = Measured(Steady((), 0)), threading.Event()

    def train() -> None:
        while not done.wait(size.push_every_s):
            began = time.perf_counter()
            try:
                push()
            except pulse_registry.PulseError as error:
                measured.failed_pushes.append(f"{type(error).__name__}: {error}"[:200])
            measured.pushes_s.append(time.perf_counter() - began)

    def watch() -> None:
        while not done.wait(0.1):
            measured.rss_mib = max(measured.rss_mib, service.rss_bytes / 2**20)

    before = _collections(service.url, admin)
    with _helpers(done, train, watch):
        url = f"{service.url}/v1/runs/{VICTIM}/versions/latest"
        command = [sys.executable, "-m", "benchmarks.service.steady", url, service.token, str(size.pace)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as steady:
            time.sleep(size.seconds)
            found = json.loads(steady.communicate(timeout=120)[0])
    measured.latest = Steady(tuple(found["milliseconds"]), found["failed"])
    measured.collections = max(0.0, _collections(service.url, admin) - before)
    return measured


@contextmanager
def _helpers(done: threading.Event, *work: Any) -> Iterator[None]:
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def _collections(url: str, admin: str) -> float:
    """Return how many collections of the victim's run, or another, ended well so far; 0 from who does not answer."""
    try:
        answer = httpx.get(f"{url}/metrics", headers={"authorization": f"Bearer {admin}"}, timeout=60)
    except httpx.HTTPError:
        return 0.0
    lines = [line for line in answer.text.splitlines() if line.startswith('pulse_gc_collections_total{outcome="done"')]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def _address_space(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _details(*measured: Measured) -> dict[str, Any]:
    """Return what is behind the rows, without thousands of figures."""
    found = {}
    for name, one in zip(("quiet", "attacked"), measured, strict=True):
        details = asdict(one)
        details["latest"] = {"count": len(one.latest.milliseconds), "failed": one.latest.failed}
        details["latest"] |= {f"p{p}_ms": round(one.latest.at(p / 100), 1) for p in (1, 50, 90, 99, 100)}
        details["pushes_s"] = [round(seconds, 3) for seconds in one.pushes_s]
        found[name] = details
    return found
