"""A trainer that begins with weights that are a version fetches nothing but what came after it."""

from __future__ import annotations

import typing
from typing import Any

import numpy as np
import pytest

from pulse_registry.errors import Fenced, InvalidArgument, LayoutMismatch
from pulse_registry.registry import Registry
from pulse_registry.store import MOST_WHOLE_BYTES
from pulse_registry.testing import CountingStore
from tests.support.groups import small_groups
from tests.support.records import DictStore
from tests.support.registries import bits, change, commits, copy_of, garbage, quick, restored, small_model


def trained(store: Any, versions: int, **options: Any) -> list[Any]:
    """Push so many versions; return the weights of each."""
    model, states = small_model(), []
    with quick(store, keyframe_share=1e9, **options) as registry:
        for step in range(versions):
            change(model, step)
            registry.push(step, model)
            states.append(copy_of(model))
    return states


class Fetched(CountingStore):
    """Remembers the objects that were read."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.keys: list[str] = []

    def get(self, key: str, byte_range: Any = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        if "/objects/" in key:
            self.keys.append(key)
        return super().get(key, byte_range, max_bytes=max_bytes)


def patches(fetched: Fetched) -> list[tuple[int, int]]:
    """Return base and target of each patch that was read, once; a keyframe is (-1, its version)."""
    found = {key.split("/")[3]: key.split("/")[2] for key in fetched.keys}
    return sorted(
        (int(name[:12]), int(name[13:25])) if kind == "patch" else (-1, int(name[:12])) for name, kind in found.items()
    )


def test_a_trainer_that_pulls_and_takes_over_downloads_the_version_once() -> None:
    store = DictStore()
    states = trained(store, 3)
    fetched = Fetched(store)
    with quick(fetched, keyframe_share=1e9) as registry:
        model = garbage(states[0])
        registry.pull(into=model)
        assert patches(fetched) == [(-1, 0), (0, 1), (1, 2)]
        fetched.keys.clear()
        found = registry.take_over(model)
        assert found is not None
        assert (found.version, found.step) == (2, 2)
        change(model, 77)
        assert registry.push(3, model).kind == "patch"
        assert fetched.keys == [], "its weights were the version: nothing is fetched again"
    assert restored(store, model, 2) == bits(states[2])
    assert restored(store, model, 3) == bits(model)


def test_a_push_right_after_a_pull_downloads_nothing_either() -> None:
    store = DictStore()
    states = trained(store, 3)
    fetched = Fetched(store)
    with quick(fetched, keyframe_share=1e9) as registry:
        registry.pull(1, into=(model := garbage(states[0])))
        fetched.keys.clear()
        assert registry.push(3, model).version == 3
        assert patches(fetched) == [(1, 2)], "what came after the version that it has"
    assert restored(store, model) == bits(states[1])


def test_to_take_over_fences_the_trainer_before_and_changes_neither_run_nor_model() -> None:
    store, model = DictStore(), small_model()
    with quick(store) as first, quick(store) as second:
        assert first.take_over(model) is None
        first.push(0, model)
        before = bits(model)
        assert second.take_over(model).version == 0  # type: ignore[union-attr]
        assert second.take_over(model).version == 0  # type: ignore[union-attr]
        change(model, 1)
        with pytest.raises(Fenced):
            first.push(1, model)
        assert restored(store, model) == before
        assert second.push(1, model).changed > 0
    with pytest.raises(InvalidArgument, match="closed"):
        second.take_over(model)


def test_to_take_over_with_another_layout_is_refused_where_a_push_would_be() -> None:
    store, model = DictStore(), small_model()
    trained(store, 1)
    before = dict(store.objects)
    with quick(store, allow_new_layout=False) as registry:
        with pytest.raises(LayoutMismatch, match="tensor 'z' is new"):
            registry.take_over({**model, "z": np.zeros(3, np.uint8)})
        assert store.objects == before


def test_a_trainer_with_a_checkpoint_of_an_older_version_fetches_the_patches_since() -> None:
    store = DictStore()
    states = trained(store, 6)
    fetched = Fetched(store)
    model = copy_of(states[3])
    with quick(fetched, keyframe_share=1e9) as registry:
        result = registry.push(10, model)
        assert patches(fetched) == [(3, 4), (4, 5)]
        assert (result.version, result.kind) == (6, "patch")
    assert restored(store, model) == bits(model)
    assert [record.step for record in commits(store)] == [0, 1, 2, 3, 4, 5, 10]


def test_weights_that_are_no_version_are_diffed_against_the_newest() -> None:
    store = DictStore()
    states = trained(store, 2)
    fetched = Fetched(store)
    model = copy_of(states[1])
    change(model, 50)
    with quick(fetched, keyframe_share=1e9) as registry:
        assert registry.push(2, model).kind == "patch"
        assert patches(fetched) == [(-1, 0), (0, 1)]
    assert restored(store, model) == bits(model)


def test_masters_whose_rounding_is_the_newest_version_need_no_download() -> None:
    store = DictStore()
    fetched = Fetched(store)
    masters = {"w": np.random.default_rng(0).normal(size=300).astype(np.float32)}
    with small_groups():
        with quick(store, dtype="bf16") as registry:
            registry.push(0, masters)
        with quick(fetched, dtype="bf16") as registry:
            masters["w"][7] += 1
            before = masters["w"][7]
            masters["w"][7] -= 1
            assert registry.push(1, masters).changed == 0
            masters["w"][7] = before
            assert registry.push(2, masters).changed == 1
    assert fetched.keys == []


def test_a_patch_since_the_checkpoint_that_is_damaged_is_gone_around() -> None:
    store = DictStore()
    states = trained(store, 4, keyframe_every=3)
    (key,) = [key for key in store.objects if "000000000002-000000000003" in key]
    store.objects[key] = bytes(len(store.objects[key]))
    model = copy_of(states[1])
    with quick(store, keyframe_share=1e9) as registry:
        assert registry.push(10, model).version == 4
    assert restored(store, model) == bits(model)


def test_a_registry_is_typed_for_any_way_to_say_wait() -> None:
    waits = [str(overload.__annotations__["wait"]) for overload in typing.get_overloads(Registry.push)]
    assert waits == ["Literal[True]", "Literal[False]", "bool"]
