"""A push with another layout is told of, or refused before anything is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pulse_registry.errors import InvalidModel, LayoutMismatch
from pulse_registry.events import Event, EventKind
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.push.layout_change import first_difference
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_schemas import Layout, Tensor
from tests.support.records import DictStore
from tests.support.registries import RUN, bits, change, restored, small_model, without_pauses


def opened(store: Any, told: list[Event] | None = None, **options: Any) -> Registry:
    with without_pauses(retries=False):
        listener = None if told is None else told.append
        chosen = PushOptions(dtype="keep", keyframe_share=1e9, **options)
        return Registry(
            store, RUN, Options(push=chosen, on_event=listener, compute=ComputeOptions(backend="reference"))
        )


def compiled(model: Any) -> Any:
    return {f"_orig_mod.{name}": array for name, array in model.items()}


def changes(told: list[Event]) -> list[str]:
    return [event.message for event in told if event.kind == EventKind.LAYOUT_CHANGED]


def test_each_push_with_another_layout_than_the_one_before_is_told_of() -> None:
    store, model, told = DictStore(), small_model(), list[Event]()
    with opened(store, told) as registry:
        registry.push(0, model)
        registry.push(1, model)
        assert changes(told) == []
        registry.push(2, compiled(model))
        registry.push(3, compiled(model))
        registry.push(4, model)
    assert changes(told) == [
        "the model has another layout than version 1, and is stored whole: tensor '_orig_mod.a.weight' is new",
        "the model has another layout than version 3, and is stored whole: tensor '_orig_mod.a.weight' is gone",
    ]


def test_a_new_process_with_another_layout_is_told_of_it() -> None:
    store, model, told = DictStore(), small_model(), list[Event]()
    with opened(store) as registry:
        registry.push(0, model)
    with opened(store, told) as registry:
        registry.push(1, compiled(model))
    assert len(changes(told)) == 1
    damaged = {key: data for key, data in store.objects.items() if "/layouts/" in key}
    for key in damaged:
        store.objects[key] = b"damaged"
    with opened(store, told := []) as registry:
        registry.push(2, {"a": np.zeros(3, np.uint8)})
    assert changes(told) == [
        "the model has another layout than version 1, and is stored whole: "
        "the layout of the version before can't be read"
    ]


@pytest.mark.parametrize("anew", [True, False])
def test_another_layout_is_refused_before_anything_is_written(anew: bool) -> None:
    store, model = DictStore(), small_model()
    registry = opened(store, allow_new_layout=False)
    registry.push(0, model)
    if anew:
        registry.close()
        registry = opened(store, allow_new_layout=False)
    before = dict(store.objects)
    with registry:
        wider = {**model, "b.bias": np.zeros(11, np.float32)}
        with pytest.raises(
            LayoutMismatch, match=r"than version 0: tensor 'b.bias' is F32 \[11\], and was F32 \[10\]\."
        ):
            registry.push(1, wider, wait=False)
        assert store.objects == before
        change(model, 1)
        assert registry.push(1, model).version == 1
    assert restored(store, model) == bits(model)


def layout(*tensors: tuple[str, Any, tuple[int, ...]], **tied: str) -> Layout:
    return Layout(
        tensors=tuple(Tensor(name=name, dtype=dtype, shape=shape) for name, dtype, shape in tensors), tied=tied
    )


@pytest.mark.parametrize(
    ("new", "told"),
    [
        (layout(("a", "BF16", (2,)), ("b", "BF16", (3,))), None),
        (layout(("a", "BF16", (2,))), "tensor 'b' is gone"),
        (layout(("b", "F32", (3,)), ("a", "BF16", (2,))), "tensor 'b' is F32 [3], and was BF16 [3]"),
        (layout(("a", "BF16", (2,)), ("b", "BF16", (3,)), c="a"), "tensor 'c' is new"),
        (layout(("a", "BF16", (2,)), b="a"), "tensor 'b' is tied to 'a', and was BF16 [3]"),
    ],
)
def test_the_first_difference_is_named(new: Layout, told: str | None) -> None:
    assert first_difference(layout(("a", "BF16", (2,)), ("b", "BF16", (3,))), new) == told


def test_a_model_that_claims_more_cells_than_a_layout_may_have_is_refused_before_anything_is_stored() -> None:
    store = DictStore()
    vast = np.broadcast_to(np.zeros(1, np.uint8), (2**43,))
    with Registry(store, RUN) as registry, pytest.raises(InvalidModel, match="more than 4398046511104 cells"):
        registry.push(0, {"w": vast})
    assert not [key for key in store.objects if "layouts/" in key or "objects/" in key]
