"""Pushes on their way are bounded: one more waits, or takes the newest one's place, and no change is ever lost."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels.reference.backend import ReferenceBackend
from pulse_registry.errors import Conflict, InvalidArgument, InvalidModel, StoreUnavailable
from pulse_registry.events import Event, EventKind
from pulse_registry.push.queue import PushQueue
from pulse_registry.push.shadow import HostShadow
from pulse_registry.registry import Registry
from pulse_registry.results import PushResult
from tests.support.gate import PATIENCE, GateStore
from tests.support.groups import small_groups
from tests.support.records import DictStore
from tests.support.registries import (
    bits,
    change,
    check_store,
    commits,
    copy_of,
    quick,
    restored,
    settle,
    small_model,
)


def opened(store: Any, told: list[Event] | None = None, **options: Any) -> Registry:
    listener = None if told is None else told.append
    return quick(store, on_event=listener, **({"keyframe_share": 1e9} | options))


def step(registry: Registry, model: Any, number: int) -> Future[PushResult]:
    change(model, number)
    return registry.push(number, model, wait=False)


@pytest.fixture
def diffed(monkeypatch: pytest.MonkeyPatch) -> list[HostShadow]:
    """The shadow of each diff that has begun, in order."""
    shadows: list[HostShadow] = []
    advance = HostShadow.advance

    def noted(shadow: HostShadow, *arguments: Any) -> Any:
        shadows.append(shadow)
        return advance(shadow, *arguments)

    monkeypatch.setattr(HostShadow, "advance", noted)
    return shadows


def held_bytes(shadow: HostShadow) -> int:
    """Return the bytes of all changes that pushes on their way hold."""
    return sum(shadow.changes_of(version).nbytes for version in range(1, shadow.version + 1))


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_push_waits_before_its_diff_while_as_many_as_may_be_are_on_their_way(
    limit: int, diffed: list[HostShadow], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, model = GateStore(), small_model()
    waiting = threading.Event()
    wait = PushQueue.wait

    def and_tell(queue: PushQueue) -> None:
        waiting.set()
        wait(queue)

    monkeypatch.setattr(PushQueue, "wait", and_tell)
    with opened(store, max_pending=limit) as registry:
        registry.push(0, model)
        with store.shut():
            futures = [step(registry, model, number) for number in range(1, limit + 1)]
            assert store.reached.wait(PATIENCE)
            assert not waiting.is_set()
            change(model, 99)
            late: list[Future[PushResult]] = []
            pusher = threading.Thread(target=lambda: late.append(registry.push(99, model, wait=False)))
            pusher.start()
            assert waiting.wait(PATIENCE)
            assert len(diffed) == limit, "it is not diffed yet"
            change(model, 100)
        pusher.join(PATIENCE)
        results = [future.result(PATIENCE) for future in (*futures, *late)]
    assert [result.version for result in results] == list(range(1, limit + 2))
    assert "wait" in results[-1].phases
    assert "wait" not in results[0].phases
    assert not any(result.coalesced for result in results)
    assert restored(store, model) == bits(model), "what changed while it waited is in it"


@pytest.mark.parametrize("when_full", ["wait", "coalesce"])
def test_what_pushes_on_their_way_hold_is_bounded_however_slow_the_store_is(
    when_full: Any, diffed: list[HostShadow]
) -> None:
    store, rng, cells = GateStore(), np.random.default_rng(0), 1_000
    model = {"w": rng.integers(0, 2**16, cells, dtype=np.uint16)}
    with opened(store, max_pending=2, when_full=when_full) as registry:
        registry.push(0, model)
        one = cells * (4 + 2 + 2)  # an index, an old cell and a new one
        most = 0
        with store.shut():
            for number in range(1, 21):
                model["w"] += rng.integers(1, 2**16, cells, dtype=np.uint16)
                if when_full == "wait" and number == 3:
                    store.open()  # or the third one would wait for ever
                registry.push(number, model, wait=False)
                most = max(most, held_bytes(diffed[-1]))
        assert one <= most <= 2 * one
    assert restored(store, model) == bits(model)


def test_a_push_takes_the_place_of_the_newest_that_has_not_begun_and_both_have_its_result() -> None:
    store, model = GateStore(), small_model()
    with opened(store, when_full="coalesce", max_pending=2) as registry:
        registry.push(0, model)
        with store.shut():
            first = step(registry, model, 1)
            assert store.reached.wait(PATIENCE)
            one = copy_of(model)
            replaced = [step(registry, model, number) for number in range(2, 7)]
            last = step(registry, model, 7)
        assert (first.result(PATIENCE).version, first.result().coalesced) == (1, False)
        result = last.result(PATIENCE)
        assert (result.version, result.step, result.coalesced) == (2, 7, False)
        for future in replaced:
            told = future.result(PATIENCE)
            assert (told.version, told.step, told.digest, told.coalesced) == (2, 7, result.digest, True)
        assert step(registry, model, 8).result(PATIENCE).version == 3
    assert [record.step for record in commits(store)] == [0, 1, 7, 8]
    assert restored(store, model, 1) == bits(one)
    assert restored(store, model) == bits(model)
    assert not check_store(store), "what was taken back was never stored"


def test_while_none_can_be_taken_back_a_push_that_coalesces_waits() -> None:
    store, model = GateStore(), small_model()
    with opened(store, when_full="coalesce", max_pending=1) as registry:
        registry.push(0, model)
        with store.shut():
            futures = [step(registry, model, 1)]
            assert store.reached.wait(PATIENCE)
            change(model, 2)
            pusher = threading.Thread(target=lambda: futures.append(registry.push(2, model, wait=False)))
            pusher.start()
        pusher.join(PATIENCE)
        assert [future.result(PATIENCE).version for future in futures] == [1, 2]
        assert not any(future.result().coalesced for future in futures)


def test_another_layout_takes_no_place_and_its_keyframe_is_not_taken_back() -> None:
    store, model = GateStore(), small_model()
    other = {**small_model(), "z.new": np.zeros(3, np.float32)}
    with opened(store, when_full="coalesce", max_pending=2) as registry:
        registry.push(0, model)
        with store.shut():
            futures = [step(registry, model, 1), step(registry, model, 2)]
            assert store.reached.wait(PATIENCE)
            pusher = threading.Thread(target=lambda: futures.append(step(registry, other, 3)))
            pusher.start()
        pusher.join(PATIENCE)
        futures.append(step(registry, other, 4))
        assert [future.result(PATIENCE).version for future in futures] == [1, 2, 3, 4]
    assert restored(store, other) == bits(other)


def test_pushes_whose_place_was_taken_fail_with_the_one_that_took_it() -> None:
    store, model = GateStore(), small_model()
    with opened(store, when_full="coalesce") as registry:
        registry.push(0, model)
        store.down = True
        with store.shut():
            futures = [step(registry, model, number) for number in (1, 2, 3)]
        assert all(isinstance(future.exception(PATIENCE), StoreUnavailable) for future in futures)
        store.down = False
        assert registry.push(4, model).version == 1
    assert restored(store, model) == bits(model)


def test_a_push_that_is_refused_takes_nobody_s_place() -> None:
    store, weights = GateStore(), {"w": np.zeros(100, np.float32)}
    with small_groups(), opened(store, when_full="coalesce", nonfinite="refuse") as registry:
        registry.push(0, weights)
        with store.shut():
            futures = []
            for number in (1, 2):
                weights["w"][number] = number
                futures.append(registry.push(number, weights, wait=False))
            assert store.reached.wait(PATIENCE)
            kept = copy_of(weights)
            weights["w"][50] = np.nan
            with pytest.raises(InvalidModel, match="step 3 is not finite"):
                registry.push(3, weights, wait=False)
            with pytest.raises(InvalidArgument):
                registry.push(3, weights, wait=False, metadata={"loss": float("nan")})
            with pytest.raises(InvalidModel):
                registry.push(3, {"w": object()}, wait=False)
        assert [future.result(PATIENCE).version for future in futures] == [1, 2]
        assert not any(future.result().coalesced for future in futures)
        assert restored(store, kept) == bits(kept)
        weights["w"][50] = 5
        with store.shut():
            futures = []
            for number in (3, 4, 5):
                weights["w"][number] = number
                futures.append(registry.push(number, weights, wait=False))
        assert [future.result(PATIENCE).version for future in futures] == [3, 4, 4]
        assert restored(store, weights) == bits(weights)


def test_a_diff_that_breaks_after_it_took_a_place_says_what_became_of_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, model, told = GateStore(), small_model(), list[Event]()

    def cut_off(*arguments: Any) -> None:
        raise MemoryError

    # gap needs no base to code a group, which the diff that is cut off would take away
    with opened(store, told, when_full="coalesce", coder="gap", backend="reference") as registry:
        registry.push(0, model)
        with store.shut():
            futures = [step(registry, model, number) for number in (1, 2)]
            assert store.reached.wait(PATIENCE)
            with monkeypatch.context() as patched:
                patched.setattr(ReferenceBackend, "advance_spans", cut_off)
                with pytest.raises(MemoryError):
                    registry.push(3, model, wait=False)
        assert futures[0].result(PATIENCE).version == 1
        with pytest.raises(Conflict, match=r"step 2 was not pushed: step 3 .*MemoryError.* next push carries its ch"):
            futures[1].result(PATIENCE)
        assert [event.message[:22] for event in told if event.kind == EventKind.PUSH_FAILED] == [
            "step 2 was not pushed:"
        ]
        assert registry.push(4, model).version == 2
    assert restored(store, model) == bits(model)


def test_a_callback_of_a_push_may_push_though_all_places_are_taken() -> None:
    store, model = GateStore(), small_model()
    pushed: list[Future[PushResult]] = []
    with opened(store, max_pending=1) as registry:
        registry.push(0, model)
        with store.shut():
            first = step(registry, model, 1)
            first.add_done_callback(lambda done: pushed.extend(step(registry, model, number) for number in (2, 3, 4)))
        first.result(PATIENCE)
        settle(registry)
        assert [future.result(PATIENCE).version for future in pushed] == [2, 3, 4]
    assert restored(store, model) == bits(model)


@pytest.mark.parametrize("options", [{"max_pending": 0}, {"when_full": "drop"}])
def test_options_out_of_their_range_are_refused(options: Any) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        opened(DictStore(), **options)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(["push", "push", "push", "drain", "down", "up", "check"]), max_size=25), st.integers(1, 3)
)
def test_whatever_happens_no_change_is_lost_and_every_push_knows_its_version(actions: list[str], limit: int) -> None:
    store, model = GateStore(), small_model()
    states: dict[int, Any] = {}
    with small_groups(), opened(store, when_full="coalesce", max_pending=limit) as registry:
        registry.push(0, model)
        states[0] = bits(model)
        futures: dict[int, Future[PushResult]] = {}
        for number, action in enumerate(actions, 1):
            if action == "push":
                try:
                    futures[number] = step(registry, model, number)
                except StoreUnavailable:
                    continue
                states[number] = bits(model)
            elif action == "drain":
                for future in futures.values():
                    future.exception(PATIENCE)
            elif action in ("down", "up"):
                store.down = action == "down"
        for future in futures.values():
            future.exception(PATIENCE)
        store.down = False
        registry.push(999, model)
        landed = [record.step for record in commits(store)]
        for number, future in futures.items():
            if future.exception() is None:
                result = future.result()
                assert landed[result.version] == result.step >= number
                assert result.coalesced == (result.step != number)
        states[999] = bits(model)
        for version, number in enumerate(landed):
            assert restored(store, model, version) == states[number]


def test_one_registry_serves_many_pushing_threads_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    store, models = GateStore(), [small_model(seed) for seed in range(4)]
    most, put = [], PushQueue.put

    def counted(queue: PushQueue, *arguments: Any) -> None:
        put(queue, *arguments)
        most.append(len(queue))

    monkeypatch.setattr(PushQueue, "put", counted)

    def push(registry: Registry, model: Any) -> None:
        for number in range(5):
            step(registry, model, number).result(PATIENCE)

    with quick(store, keyframe_share=1e9) as registry, quick(DictStore()):
        registry.push(0, models[0])
        threads = [threading.Thread(target=push, args=(registry, model)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert len(most) == 21
    assert max(most) <= 2
    assert len(commits(store)) == 21
