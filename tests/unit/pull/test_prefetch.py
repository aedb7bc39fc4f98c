"""The newest version is made ready in the background; the weights change when the worker says so, and then only."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulse_registry.errors import BaseMismatch, InvalidArgument, NotFound, PulseError
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.log import RunState
from pulse_registry.options import ComputeOptions, Options, PullOptions
from pulse_registry.pull.apply import Staged
from pulse_registry.pull.prefetch import Prefetch
from pulse_registry.pull.replica import Replicas, ReplicaState
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.results import VersionName
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange
from tests.support.records import DictStore
from tests.support.registries import RUN, Bits, Model, bits, change, garbage, quick, small_model
from tests.support.waiting import until

WAIT = 60.0


class Gated(DictStore):
    """A store whose reads of patches wait at a gate, once it is shut; it counts a prefetch's looks at the log's end."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()
        self.broken = False
        self.failure: BaseException | None = None

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        if "/log/" in key and key not in self.objects and threading.current_thread().name == "pulse-prefetch":
            self.looks += 1
        if "/objects/patch/" in key:
            self.arrived.set()
            assert self.gate.wait(WAIT)
            if self.failure is not None:
                raise self.failure
            if self.broken:
                return b"x" * len(super().get(key, byte_range, max_bytes=max_bytes))
        return super().get(key, byte_range, max_bytes=max_bytes)


@dataclass
class Site:
    """A trainer and a worker of one run.

    Attributes:
        states: what each version is.
        into: the worker's weights.
        events: that the worker was told.
        failed: is set once a prefetch has told that it could not do it.
    """

    store: Gated = field(default_factory=Gated)
    model: Model = field(default_factory=small_model)
    into: Model = field(default_factory=lambda: garbage(small_model()))
    states: list[Bits] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    failed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.trainer = quick(self.store, keyframe_share=1e9)
        chosen = Options(
            push=PushOptions(dtype="keep"),
            pull=PullOptions(undo_share=100.0),  # of so small a model, several steps
            on_event=self.hear,
            compute=ComputeOptions(backend="reference"),
        )
        self.worker = Registry(self.store, RUN, chosen)
        self.push()

    def hear(self, event: Event) -> None:
        self.events.append(event)
        if event.kind == EventKind.PREFETCH_FAILED:
            self.failed.set()

    def push(self) -> int:
        """Push a new version and return its number."""
        if self.states:
            change(self.model, len(self.states))
        self.states.append(bits(self.model))
        return self.trainer.push(len(self.states) - 1, self.model).version

    def close(self) -> None:
        self.store.gate.set()
        self.worker.close()
        self.trainer.close()


def until_idle(site: Site, prefetch: Prefetch) -> None:
    """Wait until a prefetch has looked at the log and at the weights, and found nothing to do."""
    before = site.store.looks
    prefetch.wake()
    until(lambda: site.store.looks >= before + 3)  # the first had perhaps begun before, the second is done with


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def until_ready(prefetch: Prefetch, version: int) -> None:
    """Wait until a version is ready, without taking it."""
    until(lambda: prefetch.ready == version)


def all_staged_by(worker: Registry) -> list[Staged]:
    """Return what a worker stages from now on, in order."""
    made: list[Staged] = []
    stage = worker.stage

    def noted(*arguments: Any, **options: Any) -> Staged:
        made.append(stage(*arguments, **options))
        return made[-1]

    worker.stage = noted  # type: ignore[method-assign]
    return made


def test_a_version_announced_meanwhile_is_staged_without_the_caller(site: Site) -> None:
    site.worker.pull(into=site.into)
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        assert prefetch.take() is None, "the weights hold the newest version"
        version = site.push()
        until_ready(prefetch, version)
        assert bits(site.into) == site.states[0], "the weights are the worker's to change"
        site.store.gate.clear()  # nothing is left to fetch
        staged = prefetch.take()
        assert staged is not None
        with staged:
            assert staged.apply().version == version
    assert bits(site.into) == site.states[1]


def test_weights_that_hold_nothing_get_the_newest_version_too(site: Site) -> None:
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        staged = prefetch.take(timeout=WAIT)
        assert staged is not None
        with staged:
            staged.apply()
    assert bits(site.into) == site.states[0]


def test_a_newer_version_takes_the_place_of_one_that_was_not_taken(site: Site) -> None:
    site.worker.pull(into=site.into)
    older = all_staged_by(site.worker)
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        for _ in range(3):
            until_ready(prefetch, site.push())
        assert [staged.fits for staged in older] == [False, False, True]
        staged = prefetch.take()
        assert staged is older[-1]
        assert staged is not None
        with staged:
            assert (staged.route.base, staged.apply().version) == (0, 3)
    assert bits(site.into) == site.states[3]


def test_the_next_one_is_made_from_what_was_applied(site: Site) -> None:
    site.worker.pull(into=site.into)
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        for number in range(1, 5):
            site.push()
            staged = prefetch.take(timeout=WAIT)
            assert staged is not None
            site.states[-1:] = [bits(site.model)]
            with staged:
                assert (staged.route.base, staged.apply().version) == (number - 1, number)
            assert bits(site.into) == site.states[number]


def test_while_one_is_in_hand_the_next_waits_for_what_becomes_of_it(site: Site) -> None:
    site.worker.pull(into=site.into)
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        site.push()
        first = prefetch.take(timeout=WAIT)
        assert first is not None
        site.push()
        prefetch.wake()
        first.apply()
        second = prefetch.take(timeout=WAIT)
        assert second is not None
        assert (second.route.base, second.version) == (1, 2)
        second.discard()
        third = prefetch.take(timeout=WAIT)
        assert third is not None
        assert (third.route.base, third.version, third is second) == (1, 2, False)
        third.apply()
        third.undo()
        assert bits(site.into) == site.states[1]
        third.discard()


def test_weights_that_others_changed_get_what_fits_them(site: Site) -> None:
    site.push()
    site.worker.pull(0, into=site.into)
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        until_ready(prefetch, 1)
        site.worker.pull(into=site.into)
        assert prefetch.take() is None
        site.worker.pull(0, into=site.into)
        staged = prefetch.take(timeout=WAIT)
        assert staged is not None
        with staged:
            staged.apply()
    assert bits(site.into) == site.states[1]


def test_an_error_is_told_and_tried_again(site: Site) -> None:
    site.worker.pull(into=site.into)
    site.store.broken = True
    version = site.push()
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        assert site.failed.wait(WAIT)
        assert prefetch.error is not None
        assert prefetch.take() is None
        site.store.broken = False
        staged = prefetch.take(timeout=WAIT)
        assert staged is not None
        assert prefetch.error is None
        with staged:
            assert staged.apply().version == version
    assert bits(site.into) == site.states[-1]


def test_a_version_that_was_undone_is_not_offered_again_but_a_newer_one_is(site: Site) -> None:
    site.worker.pull(into=site.into)
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        site.push()
        staged = prefetch.take(timeout=WAIT)
        assert staged is not None
        with staged:
            staged.apply()
            staged.undo()
        assert prefetch.take() is None
        until_idle(site, prefetch)
        assert prefetch.take() is None
        assert bits(site.into) == site.states[0]
        site.push()
        newer = prefetch.take(timeout=WAIT)
        assert newer is not None
        with newer:
            assert (newer.route.base, newer.apply().version) == (0, 2)
    assert bits(site.into) == site.states[2]


def test_a_version_that_was_undone_and_pulled_all_the_same_is_as_any_other(site: Site) -> None:
    site.push()
    site.worker.pull(0, into=site.into)
    with site.worker.stage(into=site.into) as staged:
        staged.apply()
        staged.undo()
    site.worker.pull(1, into=site.into)
    site.worker.pull(0, into=site.into)
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        again = prefetch.take(timeout=WAIT)
        assert again is not None
        assert again.version == 1


def test_a_version_that_is_to_be_skipped_is_dropped_and_a_newer_one_made(site: Site) -> None:
    site.worker.pull(into=site.into)
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        until_ready(prefetch, site.push())
        prefetch.skip(1)
        prefetch.skip(2)
        assert prefetch.take() is None
        site.push()
        until_idle(site, prefetch)
        assert prefetch.take() is None
        site.push()
        staged = prefetch.take(timeout=WAIT)
        assert staged is not None
        assert staged.version == 3


def test_what_is_skipped_while_it_is_staged_is_not_offered(site: Site) -> None:
    site.worker.pull(into=site.into)
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        site.store.arrived.clear()
        site.store.gate.clear()
        site.push()
        assert site.store.arrived.wait(WAIT)
        prefetch.skip(1)
        site.store.gate.set()
        until_idle(site, prefetch)
        assert prefetch.take() is None


def test_a_worker_stays_at_the_version_that_it_pinned_until_it_lets_go(site: Site) -> None:
    for _ in range(2):
        site.push()
    site.worker.tag("good", 1)
    site.worker.pull(into=site.into)
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        until_ready(prefetch, site.push())
        prefetch.pin("good")
        back = prefetch.take(timeout=WAIT)
        assert back is not None
        with back:
            assert back.apply().version == 1
        assert bits(site.into) == site.states[1]
        site.push()
        assert prefetch.take() is None
        until_idle(site, prefetch)
        assert prefetch.take() is None
        prefetch.pin(None)
        staged = prefetch.take(timeout=WAIT)
        assert staged is not None
        assert staged.version == 4


def test_what_is_pinned_is_offered_though_it_was_undone_or_skipped_before(site: Site) -> None:
    site.push()
    site.worker.pull(0, into=site.into)
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        for again in range(2):
            staged = prefetch.take(timeout=WAIT)
            assert staged is not None
            with staged:
                assert staged.apply().version == 1, again
                staged.undo()
            prefetch.skip(1)
            prefetch.pin(1)


def test_a_version_that_is_not_there_can_not_be_pinned(site: Site) -> None:
    site.push()
    site.worker.pull(0, into=site.into)
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        with pytest.raises(NotFound):
            prefetch.pin(7)
        staged = prefetch.take(timeout=WAIT)
        assert staged is not None
        assert staged.version == 1


class Turnstile:
    """A lock that tells how many have come to it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.came = threading.Semaphore(0)

    def __enter__(self) -> None:
        self.came.release()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_of_two_threads_that_pull_into_one_model_one_waits_for_the_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    turnstile, known, states = Turnstile(), Replicas.of, list[ReplicaState]()

    def of(replicas: Replicas, views: Any) -> ReplicaState:
        states.append(known(replicas, views))
        return states[-1]

    monkeypatch.setattr(Replicas, "of", of)
    site.worker.pull(into=site.into)
    [state] = states
    state.pulling = cast(Any, turnstile)
    site.push()
    site.store.arrived.clear()
    site.store.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(site.worker.pull, into=site.into)
        assert site.store.arrived.wait(WAIT)
        site.push()  # while the first one is on its way to version 1
        second = pool.submit(site.worker.pull, into=site.into)
        for _ in range(2):
            assert turnstile.came.acquire(timeout=WAIT)
        site.store.gate.set()
        assert [first.result(WAIT).version, second.result(WAIT).version] == [1, 2]
    assert bits(site.into) == site.states[2]


class Panic(BaseException):
    """What extensions raise that no handler of errors is to catch."""


@pytest.mark.parametrize("failure", [MemoryError(), RuntimeError("CUDA out of memory"), Panic()])
def test_whatever_goes_wrong_is_kept_told_and_tried_again(site: Site, failure: BaseException) -> None:
    site.worker.pull(into=site.into)
    site.store.failure = failure
    version = site.push()
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        assert site.failed.wait(WAIT)
        assert prefetch.error is failure
        assert prefetch.take() is None
        site.store.failure = None
        staged = prefetch.take(timeout=WAIT)
        assert staged is not None
        with staged:
            assert staged.apply().version == version
    assert {event.kind for event in site.events} == {EventKind.PREFETCH_FAILED}
    assert type(failure).__name__ in site.events[0].message


def test_a_listener_that_raises_does_not_end_it(site: Site) -> None:
    site.worker.pull(into=site.into)
    site.store.failure = MemoryError()
    site.push()

    def hear(event: Event) -> None:
        site.hear(event)
        raise RuntimeError("no such dashboard")

    with (
        Registry(site.store, RUN, Options(on_event=hear, compute=ComputeOptions(backend="reference"))) as worker,
        worker.prefetch(into=garbage(site.model), poll_seconds=0.01) as prefetch,
    ):
        assert site.failed.wait(WAIT)
        site.store.failure = None
        assert prefetch.take(timeout=WAIT) is not None


class Tensor:
    """Something that takes memory."""


def test_a_try_that_failed_holds_no_memory_while_the_next_one_works() -> None:
    made: list[weakref.ref[Tensor]] = []
    left: list[int] = []
    tried_again = threading.Event()

    def stage(version: VersionName) -> Staged:
        left.append(sum(ref() is not None for ref in made))
        if made:
            tried_again.set()
        tensor = Tensor()
        made.append(weakref.ref(tensor))
        raise MemoryError

    newest = cast(RunState, SimpleNamespace(latest=SimpleNamespace(version=1)))
    with Prefetch(stage, int, lambda state, sleep: newest, ReplicaState(), Events(), RUN):
        assert tried_again.wait(WAIT)
    assert left[:2] == [0, 0]


@pytest.mark.parametrize("timeout", [0.0, None])
def test_taking_from_a_prefetch_whose_thread_has_ended_says_so(site: Site, timeout: float | None) -> None:
    site.worker.pull(into=site.into)
    site.store.failure = SystemExit("somebody wants it to end")
    site.push()
    prefetch = site.worker.prefetch(into=site.into, poll_seconds=0.01)
    assert site.failed.wait(WAIT)
    until(lambda: prefetch.under_way() is None)
    with pytest.raises(PulseError, match="has ended: SystemExit: somebody wants it to end") as caught:
        prefetch.take(timeout)
    assert caught.value.__cause__ is prefetch.error is site.store.failure


def test_a_process_that_was_forked_from_its_own_is_told_and_does_not_wait(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: -1)
            with pytest.raises(InvalidArgument, match="forked"):
                prefetch.take(None)
            prefetch.close()
        assert prefetch.take(timeout=WAIT) is not None


def test_a_caller_that_waits_for_ever_is_told_when_the_prefetch_is_closed(site: Site) -> None:
    site.worker.pull(into=site.into)
    prefetch = site.worker.prefetch(into=site.into, poll_seconds=0.01)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(prefetch.take, None)
        site.worker.close()
        with pytest.raises(InvalidArgument, match="was closed"):
            taken.result(WAIT)


def test_closing_discards_what_is_ready_and_what_is_in_the_making(site: Site) -> None:
    site.worker.pull(into=site.into)
    staged = all_staged_by(site.worker)
    with site.worker.prefetch(into=site.into, poll_seconds=0.01) as prefetch:
        until_ready(prefetch, site.push())
        assert [made.version for made in staged] == [1]
        site.store.arrived.clear()
        site.store.gate.clear()
        site.push()
        assert site.store.arrived.wait(WAIT)
        with ThreadPoolExecutor(1) as pool:
            closing = pool.submit(prefetch.close)
            site.store.gate.set()
            closing.result()
    assert [made.fits for made in staged] == [False, False]
    assert prefetch.ready is None
    with pytest.raises(InvalidArgument, match="was closed"):
        prefetch.take(timeout=WAIT)
    assert bits(site.into) == site.states[0]
    prefetch.close()


def test_a_registry_that_is_closed_ends_its_prefetches(site: Site) -> None:
    prefetch = site.worker.prefetch(into=site.into, poll_seconds=0.01)
    site.worker.close()
    assert prefetch.under_way() is None
    assert site.events == []


def test_applying_one_version_does_not_wait_for_the_staging_of_another(site: Site) -> None:
    site.worker.pull(into=site.into)
    site.push()
    with site.worker.stage(into=site.into) as first, ThreadPoolExecutor(1) as pool:
        site.push()
        site.store.arrived.clear()
        site.store.gate.clear()
        other = pool.submit(site.worker.stage, "latest", into=site.into)
        assert site.store.arrived.wait(WAIT)
        first.apply()
        assert bits(site.into) == site.states[1]
        site.store.gate.set()
        with pytest.raises(BaseMismatch, match="changed while version 2 was staged"):
            other.result()
        assert bits(site.into) == site.states[1]
        with site.worker.stage(into=site.into) as last:
            last.apply()
    assert bits(site.into) == site.states[2]
