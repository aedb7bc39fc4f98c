"""No push fails without a word: what can be is refused at once, the rest is told, and raised if nobody looks."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy as np
import pytest

from pulse_registry.errors import InvalidArgument, PulseError, StoreUnavailable
from pulse_registry.events import Event, EventKind
from pulse_registry.registry import Registry
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange
from tests.support.gate import PATIENCE, GateStore
from tests.support.records import DictStore
from tests.support.registries import (
    bits,
    change,
    commits,
    quick,
    restored,
    settle,
    small_model,
)


def opened(store: Any, told: list[Event] | None = None, **options: Any) -> Registry:
    return quick(store, on_event=None if told is None else told.append, keyframe_share=1e9, **options)


def failed(told: list[Event]) -> list[str]:
    return [event.message for event in told if event.kind == EventKind.PUSH_FAILED]


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize(
    ("step", "metadata"),
    [
        (1, {"loss": float("nan")}),
        (1, {"x": object()}),
        (1, {"x": "y" * 65536}),
        (1, {3: 4}),
        (2**63, None),
        (1.5, None),
    ],
)
def test_what_can_be_refused_is_refused_in_the_call_before_anything_is_done(
    wait: bool, step: Any, metadata: Any
) -> None:
    store, model = DictStore(), small_model()
    with opened(store) as registry:
        registry.push(0, model)
        before = dict(store.objects)
        change(model, 1)
        with pytest.raises(InvalidArgument) as caught:
            registry.push(step, model, metadata=metadata, wait=wait)
        assert "pydantic" not in str(caught.value)
        settle(registry)
        assert store.objects == before
        assert registry.push(1, model, metadata={"loss": None}).version == 1
    assert restored(store, model) == bits(model)


def test_metadata_are_kept_as_they_were_at_the_call() -> None:
    store, model = GateStore(), small_model()
    with opened(store) as registry:
        registry.push(0, model)
        metadata: dict[str, Any] = {"loss": np.float32(1.0), "nested": {"list": [1]}}
        with store.shut():
            future = registry.push(np.int64(1), model, metadata=metadata, wait=False)
            metadata["loss"] = 999.0
            metadata["nested"]["list"].append(2)
        assert future.result(PATIENCE).step == 1
        assert registry.version(np.int64(1)).metadata == {"loss": 1.0, "nested": {"list": [1]}}


def test_every_push_that_fails_is_an_event_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    store, model, told = GateStore(), small_model(), []
    with opened(store, told, max_pending=3) as registry:
        registry.push(0, model)
        store.down = True
        with store.shut():
            futures = []
            for step in (1, 2, 3):
                change(model, step)
                futures.append(registry.push(step, model, wait=False))
        errors = [future.exception(PATIENCE) for future in futures]
        assert all(isinstance(error, StoreUnavailable) for error in errors)
        assert [message[:21] for message in failed(told)] == [f"step {n} was not pushed" for n in (1, 2, 3)]
        assert all(message.count("next push carries") == 1 for message in failed(told))
        assert [r.levelname for r in caplog.records if "push_failed" in r.getMessage()] == ["WARNING"] * 3
        store.down = False
        assert registry.push(4, model).version == 1
    assert restored(store, model) == bits(model)


def failing_push(registry: Registry, store: GateStore, model: Any, step: int) -> Any:
    """Push without waiting, and return the future once it has failed, without a look at it."""
    change(model, step)
    store.down = True
    future = registry.push(step, model, wait=False)
    settle(registry)
    store.down = False
    assert future.done()
    return future


def test_a_failure_that_nobody_has_seen_is_raised_by_the_next_push_and_the_one_after_carries_all() -> None:
    store, model = GateStore(), small_model()
    with opened(store, compact="inline") as registry:
        registry.push(0, model)
        failing_push(registry, store, model, 1)
        before = dict(store.objects)
        change(model, 2)
        with pytest.raises(StoreUnavailable, match="the bucket is down") as caught:
            registry.push(2, model, wait=False)
        assert "step 1 was pushed with wait=False" in caught.value.__notes__[0]
        assert store.objects == before, "nothing of the second one was done"
        assert registry.push(3, model).version == 1
    assert [record.step for record in commits(store)] == [0, 3]
    assert restored(store, model) == bits(model)


def test_a_failure_that_nobody_has_seen_is_raised_by_close_once_all_is_closed() -> None:
    store, model = GateStore(), small_model()
    registry = opened(store, compact="inline")
    registry.push(0, model)
    failing_push(registry, store, model, 1)
    with pytest.raises(StoreUnavailable, match="the bucket is down"):
        registry.close()
    registry.close()
    with pytest.raises(InvalidArgument, match="closed"):
        registry.push(2, model)


def raised(future: Any) -> None:
    with pytest.raises(StoreUnavailable):
        future.result()


async def wrapped(future: Any) -> None:
    with pytest.raises(StoreUnavailable):
        await asyncio.wrap_future(future)


@pytest.mark.parametrize(
    "look",
    [
        lambda future: future.exception(),
        raised,
        lambda future: future.add_done_callback(lambda done: done.exception()),
        lambda future: asyncio.run(wrapped(future)),
    ],
    ids=["exception", "result", "callback", "asyncio"],
)
def test_a_failure_that_somebody_has_seen_is_not_told_again(look: Any) -> None:
    store, model = GateStore(), small_model()
    with opened(store) as registry:
        registry.push(0, model)
        look(failing_push(registry, store, model, 1))
        assert registry.push(2, model).version == 1
        look(failing_push(registry, store, model, 3))


def test_a_callback_that_does_not_look_and_a_wait_that_ran_out_are_no_look() -> None:
    store, model = GateStore(), small_model()
    registry = opened(store)
    registry.push(0, model)
    store.down = True
    with store.shut():
        future = registry.push(1, model, wait=False)
        future.add_done_callback(lambda done: None)
        with pytest.raises(TimeoutError):
            future.result(timeout=0)
        assert not future.cancel(), "its changes are in those of the pushes behind it"
    with pytest.raises(StoreUnavailable):
        registry.close()


def test_an_error_on_its_way_is_not_hidden_by_a_failed_push(caplog: pytest.LogCaptureFixture) -> None:

    def train() -> None:
        store, model = GateStore(), small_model()
        with opened(store) as registry:
            registry.push(0, model)
            failing_push(registry, store, model, 1)
            raise KeyError("the trainer's own")

    with pytest.raises(KeyError, match="the trainer's own"):
        train()
    assert [r.levelno for r in caplog.records if "its future was never read" in r.getMessage()] == [logging.ERROR]


def test_a_block_that_ends_well_raises_the_failure_of_a_push_that_nobody_has_seen() -> None:
    def train() -> None:
        store, model = GateStore(), small_model()
        with quick(store) as registry:
            registry.push(0, model)
            failing_push(registry, store, model, 1)

    with pytest.raises(StoreUnavailable):
        train()


def test_a_push_that_can_not_read_the_log_is_told_as_well() -> None:
    class Away(DictStore):
        def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
            raise StoreUnavailable("away")

    told: list[Event] = []
    with opened(Away(), told) as registry, pytest.raises(PulseError, match="away"):
        registry.push(0, small_model())
    (message,) = failed(told)
    assert message.startswith("step 0 was not pushed: ")
