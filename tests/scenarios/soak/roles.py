"""The processes of a soak: ``python -m tests.scenarios.soak.roles FOLDER ROLE``. Each works until ``stop`` is there."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from pulse_registry.cache import CacheFolder
from pulse_registry.client.connect import connect
from pulse_registry.errors import Gone, NotFound, PulseError
from pulse_registry.events import Event
from pulse_registry.options import Options, PullOptions
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.store import Body, Store, WrapperStore
from tests.scenarios.soak.plan import (
    RUN,
    Ledger,
    Model,
    Plan,
    Report,
    advance,
    empty_model,
    first_model,
    mark,
    until_stopped,
)

STALL_AT = "stall"
"""While a file of this name is there, the trainer stops itself between its next upload and its record."""
STALLED = "stalled.json"
"""What the stopped trainer had uploaded."""


class Stalling(WrapperStore):
    """The trainer's store: stops the process before a record, once it is asked to."""

    def __init__(self, store: Store, plan: Plan) -> None:
        super().__init__(store)
        self._plan = plan
        self._uploaded: list[str] = []

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        if "/objects/" in key:
            self._uploaded.append(key.removeprefix(f"{RUN}/"))
        elif "/log/" in key and "snapshots" not in key:
            uploaded, self._uploaded = self._uploaded, []
            if uploaded and self._plan.path(STALL_AT).exists():
                self._plan.path(STALL_AT).unlink()
                self._plan.path(STALLED).write_text(json.dumps(uploaded))
                os.kill(os.getpid(), signal.SIGSTOP)
        super().put(key, data, if_absent=if_absent)


class Process:
    """One role's registry and report."""

    def __init__(self, plan: Plan, role: str) -> None:
        self.plan, self.role = plan, role
        self.report = Report(plan, role)
        self.ledger = Ledger(plan)
        self._around = plan.surroundings(role)

    def open(self, *, name: str | None = None, cache: bool = False) -> Registry:
        store = connect(self.plan.url)
        options = PushOptions(dtype="keep", keyframe_every=25)
        folder = CacheFolder(self.plan.path("cache")) if cache else None
        return Registry(
            Stalling(store, self.plan) if self.role == "trainer" else store,
            RUN,
            Options(
                push=options,
                name=name,
                pull=PullOptions(lease_seconds=self.plan.lease_seconds),
                on_event=self._told,
                cache=folder,
                owns_store=True,
            ),
            dependencies=self._around,
        )

    def _told(self, event: Event) -> None:
        self.report.count(f"event {event.kind}")

    # -- the four roles --------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Push a step after the other; a push that fails is told, and the next one carries its changes."""
        model, step = first_model(), 0
        with self.open() as registry:
            for _ in until_stopped(self.plan, self.plan.push_every):
                self.ledger.note(step, mark(model))
                was_stalled = self.plan.path(STALLED).exists()
                try:
                    registry.push(step, model)
                    self.report.count("pushes")
                except PulseError as error:
                    if was_stalled or not self.plan.path(STALLED).exists():
                        self.report.fail(f"push of step {step}: {error!r}")
                    else:
                        self.report.count(f"stalled push refused: {type(error).__name__}")
                else:
                    if not was_stalled and self.plan.path(STALLED).exists():
                        self.report.fail(f"push of step {step}: stalled until its objects were retired, and it counted")
                step += 1
                advance(model, step)

    def compact(self) -> None:
        with self.open() as registry:
            compactor = registry.compactor()
            for _ in until_stopped(self.plan, 0.5):
                while not self.plan.path("stop").exists() and compactor.step() is not None:
                    self.report.count("merged")
            compactor.close()

    def collect(self) -> None:
        with self.open() as registry:
            for _ in until_stopped(self.plan, 2.0):
                try:
                    found = registry.gc(self.plan.policy, dry_run=False)
                except NotFound:
                    continue  # nothing was pushed yet
                self.report.count("collections")
                self.report.count("retired versions", len(found.plan.versions))
                self.report.count("retired orphans", len(found.plan.orphans))
                self.report.count("deleted objects", found.deleted)

    def work(self) -> None:
        """Pull in the way of this worker's number, and compare all bits with what the trainer noted."""
        number = int(self.role.removeprefix("worker-"))
        turn, pause, cache = WAYS[number % len(WAYS)]
        chance, model = random.Random(number), empty_model()
        with self.open(name=self.role, cache=cache) as registry:
            for _ in until_stopped(self.plan, pause * chance.uniform(0.5, 1.5)):
                if registry.state().latest is not None:
                    turn(self, registry, model, chance)

    def _pull(self, registry: Registry, model: Model, version: int | str, *, replace: bool = False) -> None:
        try:
            result = registry.pull(version, into=model, replace=replace)  # type: ignore[call-overload]
        except Gone as error:
            if isinstance(version, int) and not self._inside(registry, version):
                self.report.count("left retention during the pull")
            else:
                self.report.fail(f"pull of {version}: {error!r}")
            return
        except PulseError as error:
            self.report.fail(f"pull of {version}: {error!r}")
            return
        self.report.count("pulls")
        self.report.count("bytes", result.nbytes)
        if mark(model) != self.ledger.of(result.step):
            self.report.fail(f"pull of {version} gave other bits than the trainer had at step {result.step}")

    def _inside(self, registry: Registry, version: int) -> bool:
        newest = registry.version().version
        return version > newest - self.plan.keep_last or version % self.plan.keep_every == 0

    def follow(self, registry: Registry, model: Model, chance: random.Random) -> None:
        self._pull(registry, model, "latest")

    def wander(self, registry: Registry, model: Model, chance: random.Random) -> None:
        versions = registry.versions()[-self.plan.keep_last // 2 :]
        self._pull(registry, model, chance.choice(versions).version)

    def join_late(self, registry: Registry, model: Model, chance: random.Random) -> None:
        with self.open() as late:
            self._pull(late, empty_model(), "latest")

    def go_far_back(self, registry: Registry, model: Model, chance: random.Random) -> None:
        kept = [version.version for version in registry.versions() if version.version % self.plan.keep_every == 0]
        self._pull(registry, model, chance.choice([*kept, "latest"]))


Turn = Callable[[Process, Registry, Model, random.Random], None]
WAYS: tuple[tuple[Turn, float, bool], ...] = (
    (Process.follow, 0.2, False),  # the one that is stopped and woken
    (Process.follow, 0.5, True),
    (Process.follow, 0.5, True),
    (Process.follow, 8.0, False),  # always far behind
    (Process.wander, 0.5, False),
    (Process.join_late, 2.0, False),
    (Process.go_far_back, 3.0, False),
    (Process.follow, 1.0, False),
)


def main() -> None:
    folder, role = sys.argv[1:]
    process = Process(Plan.read(Path(folder)), role)
    works = {"trainer": process.train, "compactor": process.compact, "collector": process.collect}
    try:
        works.get(role, process.work)()
    except Exception:  # noqa: BLE001 - the outermost edge: whatever it is, the report has it
        process.report.fail(traceback.format_exc())
    process.report.count("ended")


if __name__ == "__main__":
    main()
