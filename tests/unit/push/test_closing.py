"""Closing: it waits and says for what, has an end if asked for one, and meets pushes and pulls with a typed error."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import pytest

from pulse_registry.compaction import Compactor
from pulse_registry.errors import InvalidArgument, StoreUnavailable
from pulse_registry.process import closing
from pulse_registry.process.closing import Closing
from pulse_registry.push.publisher import Publisher
from pulse_registry.push.shadow import HostShadow
from pulse_registry.registry import Registry
from pulse_registry.results import PushResult
from pulse_registry.runtime import runtime
from pulse_registry.runtime.runtime import Runtime
from tests.support.gate import PATIENCE, GateStore
from tests.support.records import DictStore
from tests.support.registries import bits, change, commits, copy_of, garbage, quick, restored, small_model


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("pulse")}


@pytest.mark.slow
def test_close_beside_push_lets_it_end_or_tells_it_so_and_leaves_no_thread() -> None:
    before, model = threads(), small_model()

    def push_until_told(registry: Registry, under_way: threading.Barrier, ends: list[object], before: int) -> None:
        try:
            while True:
                if len(ends) == before:
                    under_way.wait()
                ends.append(registry.push(1, model, wait=False))
        except BaseException as error:  # noqa: BLE001 whatever it is, the test looks at it
            ends.append(error)

    for round_ in range(100):
        store = DictStore()
        registry = quick(store)
        under_way, ends = threading.Barrier(2, timeout=PATIENCE), list[object]()
        pusher = threading.Thread(target=push_until_told, args=(registry, under_way, ends, round_ % 4))
        pusher.start()
        under_way.wait()
        for _ in range(4 * (round_ % 10)):
            registry.versions()  # of other lengths, so that the end comes at other moments of a push
        registry.close()
        pusher.join(PATIENCE)
        futures = [end for end in ends if isinstance(end, Future)]
        errors = [end for end in ends if not isinstance(end, Future)]
        assert [type(error) for error in errors] == [InvalidArgument], errors
        assert "closed" in str(errors[0])
        assert [future.result(0).version for future in futures] == list(range(len(futures)))
        assert len(commits(store)) == len(futures)
    assert not threads() - before


def closing_once_it_has_threads(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a registry be closed as soon as a call of its has got what pushes and pulls work with."""
    context = Runtime.context

    def and_close(runtime: Runtime) -> Any:
        made = context(runtime)
        registry.close()
        return made

    monkeypatch.setattr(Runtime, "context", and_close)


def test_a_registry_that_is_closed_while_a_push_begins_makes_no_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(runtime, "Publisher", lambda *arguments: made.append(arguments))
    registry = quick(DictStore())
    closing_once_it_has_threads(registry, monkeypatch)
    with pytest.raises(InvalidArgument, match="the registry was closed; open it again"):
        registry.push(0, small_model())
    assert made == []


def test_a_push_that_is_being_diffed_ends_well_when_the_registry_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    store, model = DictStore(), small_model()
    registry = quick(store)
    registry.push(0, model)
    change(model, 1)
    closing, closes = threading.Thread(target=registry.close), threading.Event()
    advance, close = HostShadow.advance, Publisher.close

    def and_tell(publisher: Publisher, closing: Closing) -> None:
        closes.set()
        close(publisher, closing)

    def and_close(*arguments: Any) -> Any:
        closing.start()
        assert closes.wait(PATIENCE)
        return advance(*arguments)

    monkeypatch.setattr(Publisher, "close", and_tell)
    monkeypatch.setattr(HostShadow, "advance", and_close)
    assert registry.push(1, model).version == 1
    closing.join(PATIENCE)
    with pytest.raises(InvalidArgument, match="closed"):
        registry.push(2, model)


def test_a_pull_beside_close_meets_a_typed_error_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store, model = DictStore(), small_model()
    with quick(store) as trainer:
        trainer.push(0, model)
    worker, weights = quick(store), garbage(model)
    before = copy_of(weights)
    closing_once_it_has_threads(worker, monkeypatch)
    with pytest.raises(InvalidArgument, match="the registry was closed"):
        worker.pull(into=weights)
    assert bits(weights) == bits(before)


def test_close_names_the_steps_that_are_not_committed_in_time_and_a_later_one_goes_on() -> None:
    before, store, model = threads(), GateStore(), small_model()
    registry = quick(store)
    registry.push(0, model)
    with store.shut():
        futures = []
        for step in (7, 8):
            change(model, step)
            futures.append(registry.push(step, model, wait=False))
        with pytest.raises(StoreUnavailable, match=r"after 0 s, steps 7, 8 were not committed yet\. close\(\) again"):
            registry.close(timeout=0)
        with pytest.raises(InvalidArgument, match="closed"):
            registry.push(9, model)
        with pytest.raises(StoreUnavailable, match="steps 7, 8"):
            registry.close(timeout=0.001)
    registry.close(timeout=PATIENCE)
    assert [future.result(0).version for future in futures] == [1, 2]
    assert restored(store, model) == bits(model)
    assert not threads() - before


def test_close_says_what_it_waits_for_and_again_while_it_lasts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "_TELL_SECONDS", 0.001)
    caplog.set_level(logging.INFO, "pulse_registry")
    said = SimpleQueue[logging.LogRecord]()
    monkeypatch.setattr(caplog.handler, "emit", said.put)
    store, model = GateStore(), small_model()
    registry = quick(store)
    registry.push(0, model)
    with store.shut():
        registry.push(1, model, wait=False)
        closer = threading.Thread(target=registry.close)
        closer.start()
        first = [said.get(timeout=PATIENCE) for _ in range(3)]
    closer.join(PATIENCE)
    assert [record.levelno for record in first] == [logging.INFO, logging.WARNING, logging.WARNING]
    assert all("closing: step 1 was not committed yet" in record.getMessage() for record in first)


def test_close_without_pushes_on_their_way_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pulse_registry")
    with quick(DictStore()) as registry:
        registry.push(0, small_model())
    quick(DictStore()).close()
    assert not [record for record in caplog.records if "closing" in record.getMessage()]


def test_close_gives_up_in_time_on_the_compactor_and_a_later_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()

    def step(self: Compactor) -> None:
        began.set()
        assert go_on.wait(PATIENCE)

    monkeypatch.setattr(Compactor, "step", step)
    before, registry = threads(), quick(DictStore(), compact="inline")
    registry.push(0, small_model())
    assert began.wait(PATIENCE)
    with pytest.raises(StoreUnavailable, match="a compaction task is not done yet"):
        registry.close(timeout=0.001)
    go_on.set()
    registry.close(timeout=PATIENCE)
    assert not threads() - before


def test_close_gives_up_in_time_on_a_prefetch_and_a_later_one_goes_on() -> None:
    before, store, model = threads(), GateStore(), small_model()
    with quick(store) as trainer:
        trainer.push(0, model)
    worker = quick(store)
    began, go_on, stage = threading.Event(), threading.Event(), worker.stage

    def slow(*arguments: Any, **options: Any) -> Any:
        began.set()
        assert go_on.wait(PATIENCE)
        return stage(*arguments, **options)

    worker.stage = slow  # type: ignore[method-assign]
    prefetch = worker.prefetch(into=garbage(model))
    assert began.wait(PATIENCE)
    with pytest.raises(StoreUnavailable, match="a prefetch has not ended what it began"):
        worker.close(timeout=0.001)
    go_on.set()
    worker.close(timeout=PATIENCE)
    with pytest.raises(InvalidArgument, match="closed"):
        prefetch.take()
    assert not threads() - before


def test_close_waits_for_the_keyframe_that_follows_a_push() -> None:
    store, model = GateStore(), small_model()
    with quick(store, keyframe_every=2) as registry:
        registry.push(0, model)
        change(model, 1)
        registry.push(1, model, wait=False)
    with quick(store) as reader:
        assert reader.state().keyframe(1) is not None


def test_a_callback_of_a_push_is_told_that_it_can_not_close() -> None:
    told: list[BaseException] = []

    def close(done: Future[PushResult]) -> None:
        try:
            registry.close()
        except InvalidArgument as error:
            told.append(error)

    store, model = GateStore(), small_model()
    registry = quick(store)
    registry.push(0, model)
    with store.shut():
        registry.push(1, model, wait=False).add_done_callback(close)
    registry.close()
    assert "can't close" in str(told[0])
