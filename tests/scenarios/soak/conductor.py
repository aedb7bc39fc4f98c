"""Runs a soak: starts the processes, stops and wakes two of them, waits, and looks at what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pulse_registry.client.connect import connect
from pulse_registry.errors import PulseError
from pulse_registry.options import Options
from pulse_registry.registry import Registry
from pulse_registry.store import PrefixStore
from tests.scenarios.soak.plan import RUN, Ledger, Plan, empty_model, mark
from tests.scenarios.soak.roles import STALL_AT, STALLED

ROOT = Path(__file__).resolve().parents[3]
WORKERS = 8
_WORK = {"trainer": "pushes", "compactor": "merged", **{f"worker-{number}": "pulls" for number in range(WORKERS)}}
_COLLECTED = ("retired versions", "retired orphans", "deleted objects")
_PATIENCE_SECONDS = 120.0
Result = dict[str, Any]
Condition = Callable[[], bool]


def soak(plan: Plan, environment: Mapping[str, str]) -> Result:
    """Run one soak, and return counts and failures."""
    roles = ["trainer", "compactor", "collector", *(f"worker-{number}" for number in range(WORKERS))]
    plan.write()
    began = time.monotonic()
    with _processes(plan, roles, environment) as processes:
        stalls = _Stalls(plan, processes)
        told, last = False, began + plan.seconds + _PATIENCE_SECONDS
        while time.monotonic() < (began + plan.seconds if told else last):
            told = stalls.turn()
            time.sleep(0.2)
        stalls.end()
        plan.path("stop").touch()
        ended = [_end(process) for process in processes.values()]
    reports = {role: json.loads(plan.path(f"report-{role}.json").read_text()) for role in roles}
    failures = [f"{role}: {why}" for role, report in reports.items() for why in report["failures"]]
    failures += [f"{role} did not end by itself" for role, by_itself in zip(roles, ended, strict=True) if not by_itself]
    totals: dict[str, int] = {}
    for report in reports.values():
        for what, number in report["counts"].items():
            totals[what] = totals.get(what, 0) + number
    failures += stalls.failures
    failures += [f"{role} did nothing" for role, what in _WORK.items() if not reports[role]["counts"].get(what)]
    failures += [f"the collector counted no {what}" for what in _COLLECTED if not totals.get(what)]
    bucket, wrong = _look(plan, stalls.uploaded)
    return {
        "seconds": round(time.monotonic() - began, 1),
        "store": plan.url.partition(":")[0],
        "skew_seconds": dict(plan.skew_seconds),
        "failures": [*failures, *wrong],
        "totals": dict(sorted(totals.items())),
        "stalls": stalls.counts,
        "bucket": bucket,
        "reports": {role: report["counts"] for role, report in reports.items()},
    }


class _Stalls:
    """Stops worker 0 twice, once for longer than its lease and the grace, and the trainer once in the middle of a push.

    The trainer is woken when the collector has retired what it had uploaded.
    """

    def __init__(self, plan: Plan, processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
        self._plan, self._processes = plan, processes
        self._stories = [_Told(self._of_worker()), _Told(self._of_trainer())]
        self.counts: dict[str, Any] = {"worker": 0, "trainer": 0}
        self.failures: list[str] = []
        self.uploaded: list[str] = []

    def turn(self) -> bool:
        """Go on where what is waited for has come; tell whether all has come."""
        ended = [story.turn() for story in self._stories]  # each of them, whatever the others say
        return all(ended)

    def end(self) -> None:
        """Wake whoever is still stopped, and say what did not come about."""
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
        for who, times in (("worker", 2), ("trainer", 1)):
            if self.counts[who] != times:
                self.failures.append(f"the {who} was stopped and woken {self.counts[who]} times, not {times}")

    def _of_worker(self) -> Iterator[Condition]:
        worker = self._processes["worker-0"]
        yield lambda: _count(self._plan, "worker-0", "pulls") > 5
        for seconds in (self._plan.lease_seconds / 2, self._plan.lease_seconds + 2 * self._plan.grace_seconds):
            before = _count(self._plan, "worker-0", "pulls")
            worker.send_signal(signal.SIGSTOP)
            yield _later(seconds)
            worker.send_signal(signal.SIGCONT)
            yield lambda before=before: _count(self._plan, "worker-0", "pulls") > before + 2  # type: ignore[misc]
            self.counts["worker"] += 1

    def _of_trainer(self) -> Iterator[Condition]:
        yield lambda: _count(self._plan, "trainer", "pushes") > 1.5 * self._plan.keep_last
        self._plan.path(STALL_AT).touch()
        yield lambda: self._plan.path(STALLED).exists()
        self.uploaded = json.loads(self._plan.path(STALLED).read_text())
        began, before = time.monotonic(), _count(self._plan, "trainer", "pushes")
        yield self._retired
        self.counts |= {"trainer_seconds": round(time.monotonic() - began, 1), "orphans": len(self.uploaded)}
        self._processes["trainer"].send_signal(signal.SIGCONT)
        yield lambda: _count(self._plan, "trainer", "pushes") > before
        self.counts["trainer"] += 1

    def _retired(self) -> bool:
        with _reader(self._plan) as registry:
            return all(map(registry.state().is_retired_key, self.uploaded))


class _Told:
    """A story that waits for one condition after the other."""

    def __init__(self, story: Iterator[Condition]) -> None:
        self._story = story
        self._wait: Condition | None = next(story)

    def turn(self) -> bool:
        """Go on as far as it goes; tell whether that is the end."""
        while self._wait is not None and self._wait():
            self._wait = next(self._story, None)
        return self._wait is None


def _count(plan: Plan, role: str, what: str) -> int:
    path = plan.path(f"report-{role}.json")
    return int(json.loads(path.read_text())["counts"].get(what, 0)) if path.exists() else 0


def _later(seconds: float) -> Condition:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


@contextmanager
def _processes(
    plan: Plan, roles: list[str], environment: Mapping[str, str]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    found: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for role in roles:
            command = [sys.executable, "-m", "tests.scenarios.soak.roles", plan.folder, role]
            with plan.path(f"{role}.log").open("wb") as log:
                found[role] = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
        yield found
    finally:
        for process in found.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def _end(process: subprocess.Popen[bytes]) -> bool:
    try:
        return process.wait(_PATIENCE_SECONDS) == 0
    except subprocess.TimeoutExpired:
        return False


@contextmanager
def _reader(plan: Plan) -> Iterator[Registry]:
    with Registry(connect(plan.url), RUN, Options(owns_store=True)) as registry:
        yield registry


def _look(plan: Plan, uploaded: list[str]) -> tuple[dict[str, int], list[str]]:
    """Restore every version that lives, bit for bit, and compare the bucket with the log."""
    wrong, ledger = [], Ledger(plan)
    with _reader(plan) as registry:
        state = registry.state()
        model = empty_model()
        for version in registry.versions():
            try:
                result = registry.pull(version.version, into=model, replace=True)
            except PulseError as error:
                wrong.append(f"version {version.version} can't be had: {error!r}")
                continue
            if mark(model) != ledger.of(result.step):
                wrong.append(f"version {version.version} has other bits than the trainer had at step {result.step}")
        store = PrefixStore(connect(plan.url), RUN)
        stored = set(store.list("objects/"))
        named = {patch.object.key for patch in state.patches}
        named |= {ref.key for keyframe in state.keyframes for ref in (keyframe.index, *keyframe.shards)}
        wrong += [f"{key} lives, and is not in the bucket" for key in sorted(named - stored)]
        wrong += [f"{key} was retired before its record, and lives" for key in sorted(named & set(uploaded))]
        live = len(registry.versions())
        counts = {
            "records": state.seq + 1,
            "versions": len(state.versions),
            "live_versions": live,
            "merged_patches": sum(patch.target - patch.base > 1 for patch in state.patches),
            "live_objects": len(named),
            "other_objects": len(stored - named),
        }
    return counts, wrong
