"""The follower: the order of a change, and what becomes of an engine whatever fails in between."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from pulse_registry.client.reports import Reporter
from pulse_registry.follow import Changed, EngineFailed, Failed, Follower, Pace
from pulse_registry.follow.follower import FIRST_PAUSE_S, LONGEST_PAUSE_S
from pulse_registry.options import Options
from pulse_registry.registry import Registry
from pulse_registry.signing import trust_of
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import Fault
from pulse_schemas.api import WorkerReport
from tests.support.clock import Clock
from tests.support.records import DictStore
from tests.support.registries import change, quick, small_model
from tests.support.waiting import until

STEPS = ["stage", "pause", "apply", "reset_caches", "resume"]


class StubEngine:
    """An engine that notes what it is told, and fails where a test says so.

    Attributes:
        calls: what it was told.
        fails: the names of the calls that fail, each once.
        serves, paused: what it serves, and whether.
    """

    name, pauses = "stub", True

    def __init__(self, serves: int | None = None, fails: Iterator[str] | None = None) -> None:
        self.calls: list[str] = []
        self.fails: list[str] = list(fails or ())
        self.serves, self.paused, self.staged = serves, False, -1

    def version(self) -> int | None:
        self._note("version")
        return self.serves

    def stage(self, version: int) -> None:
        self._note("stage")
        self.staged = version

    def pause(self) -> None:
        self.paused = True
        self._note("pause")  # the answer is lost, perhaps

    def apply(self, version: int) -> None:
        assert self.paused
        assert self.staged == version
        self._note("apply")
        self.serves = version

    def reset_caches(self) -> None:
        self._note("reset_caches")

    def undo(self, version: int | None) -> None:
        assert self.paused
        self._note("undo")
        self.serves = version

    def resume(self) -> None:
        self._note("resume")
        self.paused = False

    def close(self) -> None:
        self._note("close")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.fails:
            self.fails.remove(call)
            raise EngineFailed(f"{call} failed")


class World:
    """A run in memory, an engine, and a follower whose time passes while it pauses or waits."""

    def __init__(self, engine: StubEngine, pace: Pace | None = None, *, versions: int = 3) -> None:
        self.store, self.model, self.clock, self.engine = DictStore(), small_model(), Clock(), engine
        self.trainer, self.told, self.waits = quick(self.store), list[Changed | Failed](), list[float]()
        for _ in range(versions):
            self.push()
        self.rounds, self.on_wait = 0, self.stop
        self.registry = quick(self.store)
        self.follower = self.follow(self.registry, pace or Pace())

    def follow(self, registry: Registry, pace: Pace, reporter: Reporter | None = None) -> Follower:
        return Follower(
            registry,
            self.engine,
            pace,
            self.told.append,
            reporter=reporter,
            clock=self.clock,
            sleep=self.clock.sleep,
            wait=self.wait,
        )

    def push(self) -> None:
        change(self.model, random.getrandbits(30))
        self.trainer.push(0, self.model)

    def stop(self) -> None:
        self.follower.stop()

    def wait(self, after: int, seconds: float) -> None:
        self.waits.append(seconds)
        self.clock.now += seconds
        self.on_wait()

    def changes(self) -> list[tuple[int | None, int]]:
        return [(told.before, told.version) for told in self.told if isinstance(told, Changed)]

    def failures(self) -> list[str]:
        return [told.message for told in self.told if isinstance(told, Failed)]


def test_a_change_is_staged_while_the_engine_serves_and_its_caches_are_reset_before_it_goes_on() -> None:
    world = World(StubEngine(serves=0))
    world.follower.run()
    assert world.engine.calls == ["version", *STEPS, "version"]
    assert world.changes() == [(0, 2)]
    (told,) = world.told
    assert (
        told.document().items() >= {"changed": True, "engine": "stub", "version": 2, "before": 0, "behind": 0}.items()
    )
    assert (told.document()["stage_s"], told.document()["pause_s"]) == (0.0, 0.0)
    assert "stub: version 0 -> 2, staged" in told.line()


@pytest.mark.parametrize("step", STEPS)
def test_whatever_fails_the_engine_goes_on_with_its_old_version_and_is_changed_later(step: str) -> None:
    world = World(StubEngine(serves=0, fails=iter([step])))
    seen: list[tuple[bool, int | None]] = []
    world.clock.sleep = lambda seconds: seen.append((world.engine.paused, world.engine.serves))  # type: ignore[method-assign]
    world.follower = world.follow(world.registry, Pace())
    world.follower.run()
    assert world.changes() == [(0, 2)]
    assert (world.engine.paused, world.engine.serves) == (False, 2)
    if step == "resume":  # it was repeated, as it must be
        assert world.failures() == []
        return
    assert seen == [(False, 0)]
    assert world.failures() == [f"{step} failed"]
    assert world.engine.calls.count("resume") == (1 if step == "stage" else 2)
    assert ("undo" in world.engine.calls) == (step in ("apply", "reset_caches"))


def test_what_can_not_be_taken_back_is_said_and_the_engine_goes_on_nevertheless() -> None:
    world = World(StubEngine(serves=0, fails=iter(["reset_caches", "undo"])))
    world.follower.run()
    assert world.failures() == ["reset_caches failed; and it could not be taken back: undo failed"]
    assert not world.engine.paused


def test_an_interrupt_in_a_pause_ends_it() -> None:
    world = World(StubEngine(serves=0))

    def interrupted(version: int) -> None:
        raise KeyboardInterrupt

    world.engine.apply = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        world.follower.run()
    assert not world.engine.paused
    assert not world.follower.pausing
    assert world.engine.calls[-2:] == ["undo", "resume"]


def test_the_pauses_between_failures_grow_up_to_a_bound_and_begin_anew_after_a_success() -> None:
    world = World(StubEngine(serves=0, fails=iter(["stage"] * 12)))
    world.follower.run()
    bounds = [min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**n) for n in range(12)]
    assert len(world.clock.pauses) == 12
    assert all(0 <= pause <= bound for pause, bound in zip(world.clock.pauses, bounds, strict=True))
    assert [told.retry_in_s for told in world.told if isinstance(told, Failed)] == world.clock.pauses
    assert max(world.clock.pauses) > 2 * FIRST_PAUSE_S
    world.push()
    world.engine.fails = ["stage"]
    world.follower = world.follow(world.registry, Pace())
    world.follower.run()
    assert world.clock.pauses[12] <= FIRST_PAUSE_S


def test_an_engine_that_was_started_anew_is_brought_up_again() -> None:
    world = World(StubEngine(serves=0))

    def restart() -> None:
        world.engine.serves, world.on_wait = 0, world.stop

    world.on_wait = restart
    world.follower.run()
    assert world.changes() == [(0, 2), (0, 2)]


def test_a_pinned_engine_stays_and_a_tag_that_moves_is_followed() -> None:
    world = World(StubEngine(serves=0), Pace(version="stable"))
    world.trainer.tag("stable", 1)
    moves = iter(
        [world.push, lambda: world.trainer.tag("stable", 3), lambda: world.trainer.tag("stable", 0), world.stop]
    )
    world.on_wait = lambda: next(moves)()  # type: ignore[assignment]
    world.follower.run()
    assert world.changes() == [(0, 1), (1, 3), (3, 0)]
    numbered = World(StubEngine(serves=2), Pace(version=1))
    numbered.follower.run()
    assert numbered.changes() == [(2, 1)]


def test_changes_come_at_most_so_often_but_sooner_where_the_engine_is_too_far_behind() -> None:
    world = World(StubEngine(serves=0), Pace(at_most_every_s=8, max_behind=2), versions=2)
    began: list[float] = []
    stage = world.engine.stage

    def staged(version: int) -> None:
        began.append(world.clock.now)
        stage(version)

    world.engine.stage = staged  # type: ignore[method-assign]
    pushes = iter([1, 1, 3, 0])

    def on_wait() -> None:
        count = next(pushes, None)
        for _ in range(count or 0):
            world.push()
        if count is None:
            world.stop()

    world.on_wait = on_wait  # type: ignore[assignment]
    world.follower.run()
    assert world.changes() == [(0, 1), (1, 3), (3, 6)]
    assert began[1] - began[0] >= 8
    assert began[2] - began[1] < 8


def test_an_empty_run_is_waited_for_and_a_store_that_is_away_is_asked_again() -> None:
    world = World(StubEngine(serves=None), versions=0)
    world.on_wait = lambda: (world.push(), setattr(world, "on_wait", world.stop))  # type: ignore[assignment]
    world.follower.run()
    assert world.changes() == [(None, 0)]
    world.push()
    broken = quick(FaultStore(world.store, [Fault("fail_before", "get", times=1)]))
    world.follower = world.follow(broken, Pace())
    world.follower.run()
    assert [told.error for told in world.told if isinstance(told, Failed)] == ["StoreUnavailable"]
    assert world.changes()[1:] == [(0, 1)]


def test_a_run_that_another_key_has_signed_changes_no_weight() -> None:
    world = World(StubEngine(serves=0))
    pinned = Registry(world.store, "run", Options(trust=trust_of(["ed25519:" + "11" * 32])))
    world.follower = world.follow(pinned, Pace())
    world.clock.sleep = lambda seconds: world.stop()  # type: ignore[method-assign]
    world.follower = world.follow(pinned, Pace())
    world.follower.run()
    (told,) = world.told
    assert isinstance(told, Failed)
    assert (told.error, told.serves) == ("Untrusted", 0)
    assert world.engine.calls == ["version"]


class Service:
    """Takes reports."""

    def __init__(self) -> None:
        self.told: list[WorkerReport | str] = []

    def report(self, run: str, worker: str, report: WorkerReport) -> None:
        self.told.append(report)

    def deregister(self, run: str, worker: str) -> None:
        self.told.append("left")


def test_the_service_hears_what_the_engine_serves_and_how_long_it_paused_and_when_it_does_not_answer() -> None:
    world, service = World(StubEngine(serves=0)), Service()
    reporter = Reporter(service, "run", "engine-0")
    world.follower = world.follow(world.registry, Pace(), reporter)

    def gone() -> None:
        until(lambda: len(service.told) >= 1 and service.told[-1] != "left" and service.told[-1].version == 2)  # type: ignore[union-attr]
        world.engine.fails, world.on_wait = ["version"], back

    def back() -> None:
        until(lambda: service.told[-1] != "left" and "left" in service.told)
        world.stop()

    world.clock.sleep = lambda seconds: until(lambda: service.told[-1] == "left")  # type: ignore[method-assign]
    world.on_wait = gone
    world.follower = world.follow(world.registry, Pace(), reporter)
    world.follower.run()
    reporter.close()
    last = service.told[-4:]
    assert last[1] == last[3] == "left"
    changed, again = last[0], last[2]
    assert isinstance(changed, WorkerReport)
    assert isinstance(again, WorkerReport)
    digest = world.registry.version(2).digest
    assert (changed.version, changed.digest, sorted(changed.phases)) == (2, digest, ["pause", "stage"])
    assert (again.version, again.digest, again.phases) == (2, digest, {})
