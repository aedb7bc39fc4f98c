"""Every store call of a push fails: before it acts, after it acted, once, and with the store down from there on."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest

from pulse_registry.errors import Fenced, StoreUnavailable
from pulse_registry.push.baseline import Baseline
from pulse_registry.push.pending import PendingPush
from pulse_registry.push.queue import PushQueue
from pulse_registry.registry import Registry
from pulse_registry.retention import RetentionPolicy
from pulse_registry.store import MOST_WHOLE_BYTES, Body, ByteRange, Store, WrapperStore
from pulse_registry.testing import Fault, FaultStore
from tests.support.records import DictStore
from tests.support.registries import (
    Model,
    Outage,
    all_restored,
    bits,
    calls_of,
    change,
    check_store,
    commits,
    copied,
    copy_of,
    failing,
    push_thread,
    quick,
    restored,
    settle,
    small_model,
    state_of,
)
from tests.support.sampling import EVERY_CALL, places, slow_but, writes


@dataclass(frozen=True)
class Push:
    """A push to try: how many versions are there before, whether by the same process, and the keyframe rule."""

    name: str
    before: int
    warm: bool
    keyframe_every: int | None = None

    def open(self, store: Store, retries: bool) -> Registry:
        return quick(store, retries=retries, keyframe_share=1e9, keyframe_every=self.keyframe_every)


PUSHES = [
    Push("the first of a run", before=0, warm=False),
    Push("a patch", before=2, warm=True),
    Push("a patch by a new process", before=2, warm=False),
    Push("a patch with a keyframe after it", before=2, warm=True, keyframe_every=2),
    Push("a patch with a keyframe after it, by a new process", before=2, warm=False, keyframe_every=2),
]
FAILURES = [("fail_before", False), ("fail_after", False), ("fail_before", True), ("fail_after", True)]


def model_at(version: int) -> Model:
    """Return the weights of a version, in memory of their own."""
    return copy_of(_model_at(version))


@functools.cache
def _model_at(version: int) -> Model:
    model = small_model()
    for number in range(version):
        change(model, seed=number)
    return model


def prepared(push: Push, retries: bool) -> tuple[DictStore, Registry, Outage]:
    """Return a store with the versions before, and the registry that is to push the next one through faults."""
    store = DictStore() if push.warm else copied(_versions_before(push))
    faulty, outage = failing(store)
    registry = push.open(faulty, retries)
    if push.warm:
        for version in range(push.before):
            registry.push(version, model_at(version))
        settle(registry)
    return store, registry, outage


@functools.cache
def _versions_before(push: Push) -> DictStore:
    store = DictStore()
    with push.open(store, False) as registry:
        for version in range(push.before):
            registry.push(version, model_at(version))
        settle(registry)
    return store


def pushed(registry: Registry, version: int) -> Callable[[], object]:
    def run() -> object:
        result = registry.push(version, model_at(version))
        settle(registry)
        return result

    return run


def where(calls: list[tuple[str, str]], action: str, every: bool) -> list[int]:
    """Return which calls to fail; a read that fails after it acted has done no more than one that fails before."""
    return [nth for nth in places(calls, every) if every or action == "fail_before" or nth in writes(calls)]


def check_log(store: Store, versions: int) -> None:
    """All versions are committed, and the bytes that the log names are there."""
    assert [record.step for record in commits(store)] == list(range(versions))
    check_store(store)


def check_history(store: Store, versions: int) -> None:
    """Every version can be restored, too."""
    check_log(store, versions)
    models = [model_at(version) for version in range(versions)]
    assert all_restored(store, models) == [bits(model) for model in models]


@EVERY_CALL
@pytest.mark.parametrize(("action", "lasting"), FAILURES)
@pytest.mark.parametrize("push", slow_but(PUSHES[:2], PUSHES), ids=lambda push: push.name)
def test_a_push_that_loses_a_call_is_whole_or_absent_and_the_next_one_carries_it(
    push: Push, action, lasting, every: bool
) -> None:
    store, registry, outage = prepared(push, retries=False)
    with registry:
        calls = calls_of(pushed(registry, push.before), outage)
    assert len(calls) >= 2
    told, refused = 0, 0
    for nth in where(calls, action, every):
        store, registry, outage = prepared(push, retries=False)
        with registry:
            outage.arm(nth, action, lasting=lasting)
            try:
                registry.push(push.before, model_at(push.before))
            except StoreUnavailable:
                refused += 1
                settle(registry)
                assert outage.heal(), "it fails only if the store does"
                landed = len(commits(store))
                assert landed in (push.before, push.before + 1)
                expected = landed
            else:
                told += 1
                settle(registry)
                assert outage.heal()
                expected = push.before + 1
                assert len(commits(store)) == expected, "what was acknowledged is in the log"
            check_log(store, expected)  # no object changes any more: they are pulled below
            for version in range(expected, push.before + 3):
                assert registry.push(version, model_at(version)).version == version
            settle(registry)
        check_history(store, push.before + 3)
    assert refused, "some calls matter"
    if action == "fail_after" and not lasting:
        assert told, "the log proves that the commit landed, whose answer was lost"


@EVERY_CALL
@pytest.mark.parametrize("action", ["fail_before", "fail_after"])
@pytest.mark.parametrize("push", slow_but(PUSHES[:2], PUSHES), ids=lambda push: push.name)
def test_a_push_with_retries_does_not_notice_a_single_lost_call(push: Push, action, every: bool) -> None:
    store, registry, outage = prepared(push, retries=True)
    with registry:
        calls = calls_of(pushed(registry, push.before), outage)
    for nth in where(calls, action, every):
        store, registry, outage = prepared(push, retries=True)
        with registry:
            outage.arm(nth, action)
            assert registry.push(push.before, model_at(push.before)).version == push.before
            settle(registry)
            assert outage.heal()
            assert registry.push(push.before + 1, model_at(push.before + 1)).version == push.before + 1
            settle(registry)
        check_history(store, push.before + 2)
        orphans = check_store(store)
        assert not orphans, "a put that is sent again writes the same object"


def test_the_lost_answer_of_every_conditional_put_makes_no_conflict_and_no_second_version() -> None:
    for retries in (False, True):
        store = DictStore()
        lost: list[str] = []

        def is_new_record(verb: str, key: str, lost: list[str] = lost) -> bool:
            if verb != "put" or not key.startswith("run/log/0") or key in lost:
                return False
            lost.append(key)
            return True

        faulty = FaultStore(store, [Fault("fail_after", matches=is_new_record)])
        with quick(faulty, retries=retries, keyframe_every=2) as registry:
            for version in range(8):
                assert registry.push(version, model_at(version)).version == version
                settle(registry)
        records = list(store.list("run/log/0"))
        assert lost == records, "each record's answer was lost once"
        assert len(records) > 8 + 1
        assert [record.step for record in commits(store)] == list(range(8))
        assert not check_store(store)


@pytest.mark.slow
def test_pushes_that_do_not_wait_fail_together_and_the_next_one_carries_them_all() -> None:
    store, registry, outage = prepared(PUSHES[1], retries=False)
    with registry:
        calls = len(calls_of(pushed(registry, 2), outage))
    for nth in range(1, 3 * calls + 1):
        for action, lasting in FAILURES:
            store, registry, outage = prepared(PUSHES[1], retries=False)
            with registry:
                outage.arm(nth, action, lasting=lasting)
                model = model_at(2)
                steps = {0: bits(model_at(0)), 1: bits(model_at(1))}
                futures = {}
                for step in (2, 3, 4):
                    steps[step] = bits(model)
                    with suppress(StoreUnavailable):
                        futures[step] = registry.push(step, model, wait=False)
                    change(model, seed=100 * step)
                told = {}
                for step, future in futures.items():
                    with suppress(StoreUnavailable):
                        told[future.result().version] = step
                settle(registry)
                outage.heal()
                landed = [record.step for record in commits(store)]
                # A push that began after the failure of one before it carries its changes; the others fail with it.
                assert landed == sorted(landed)
                assert told.items() <= dict(enumerate(landed)).items()
                assert len(landed) - 2 - len(told) <= 1, "at most one landed without its answer"
                assert all_restored(store, [model] * len(landed)) == [steps[step] for step in landed]
                result = registry.push(9, model)
                assert result.version == len(landed)
                settle(registry)
            assert restored(store, model) == bits(model)
            check_store(store)


def test_a_fenced_trainer_attaches_no_keyframe_of_its_own_cells_to_the_version_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = DictStore()
    first, second = quick(store, keyframe_every=2), quick(store, keyframe_share=1e9)
    with first, second:
        first.push(0, model_at(0))
        held_back: list[Callable[[], None]] = []
        monkeypatch.setattr(PushQueue, "then", lambda queue, what, work: held_back.append(work))
        first.push(1, model_at(1))
        settle(first)
        assert held_back, "a keyframe of version 1 is due"
        second.push(2, model_at(5))
        first.versions()  # any thread may follow the log meanwhile
        for attach in held_back:
            attach()
    check_history_of = {0: model_at(0), 1: model_at(1), 2: model_at(5)}
    for version, model in check_history_of.items():
        assert restored(store, model, version) == bits(model)
    assert 2 not in [keyframe.version for keyframe in state_of(store).keyframes]


class Interrupted(DictStore):
    """Lets something happen once, before the first object is read."""

    happens: Callable[[], None] | None = None

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        if "/objects/" in key and self.happens is not None:
            happens, self.happens = self.happens, None
            happens()
        return super().get(key, byte_range, max_bytes=max_bytes)


def test_a_trainer_whose_start_was_collected_while_it_slept_is_told_that_another_took_over() -> None:
    store = Interrupted()
    with quick(store) as first:
        first.push(0, model_at(0))
        first.push(1, model_at(1))
    everything_but_the_newest = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0, orphan_seconds=0)

    def another_goes_on() -> None:
        with quick(store, keyframe_every=1) as another:
            another.push(2, model_at(2))
            settle(another)
            another.gc(everything_but_the_newest, dry_run=False)
            another.gc(everything_but_the_newest, dry_run=False)

    with quick(store) as sleeper:
        store.happens = another_goes_on
        with pytest.raises(Fenced, match="a newer writer began epoch 3"):
            sleeper.push(2, model_at(3))
    assert state_of(store).is_retired(1)
    assert restored(store, model_at(2)) == bits(model_at(2))


def test_a_push_between_two_failures_of_earlier_ones_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    store, registry, outage = prepared(PUSHES[1], retries=False)
    with registry:
        take_back, later = Baseline.take_back, []

        def and_push_at_once(baseline: Baseline, push: PendingPush, error: BaseException) -> None:
            # A trainer that calls just when a failed push has been taken back, and the next has not failed yet.
            take_back(baseline, push, error)
            outage.heal()
            step = 4 + len(later)
            later.append(registry.push(step, model_at(step), wait=False))

        monkeypatch.setattr(Baseline, "take_back", and_push_at_once)
        outage.arm(1, "fail_before", lasting=True)
        doing = threading.Event()
        push_thread(registry).submit(doing.wait)
        failing_pushes = [registry.push(step, model_at(step), wait=False) for step in (2, 3)]
        doing.set()
        for future in failing_pushes:
            with pytest.raises(StoreUnavailable):
                future.result()
        assert [future.result().version for future in later] == [2, 3]
    assert [record.step for record in commits(store)] == [0, 1, 4, 5]
    for version, step in enumerate([0, 1, 4, 5]):
        assert restored(store, model_at(step), version) == bits(model_at(step))


class _NoKeyframes(WrapperStore):
    """A store that fails in a way of its own when a keyframe comes, once it is told to."""

    fails = False

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        if self.fails and "/keyframe/" in key:
            raise RuntimeError("not ours")
        super().put(key, data, if_absent=if_absent)


def test_a_keyframe_that_fails_in_any_way_is_logged_and_tried_after_the_next_push(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = _NoKeyframes(DictStore())
    with quick(store, keyframe_share=1e9, keyframe_every=2) as registry:
        for version in range(4):
            registry.push(version, model_at(version))
            settle(registry)
            store.fails = version < 2
            if version == 2:
                assert [record.levelname for record in caplog.records] == ["ERROR"]
                assert "no keyframe of version 2" in caplog.text
    assert {keyframe.version for keyframe in state_of(store).keyframes} == {0, 3}
