"""Pulls into live weights with keyframes staged in memory: the same bits as through files, all of them or none."""

from __future__ import annotations

import gc
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pulse_registry
from pulse_registry import PullOptions
from pulse_registry.errors import CorruptObject, StoreUnavailable
from pulse_registry.options import Options, PushOptions
from pulse_registry.registry import Registry
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.store import Buffer, ByteRange, MemoryStore
from tests.support.groups import small_groups
from tests.support.waiting import until

Model = dict[str, np.ndarray[Any, Any]]


class Watched(MemoryStore):
    """A store that may refuse reads of shards, or damage them."""

    def __init__(self) -> None:
        super().__init__(f"staging/{uuid.uuid4().hex}")
        self.reads, self.refuse_after, self.damage = 0, 1 << 30, False

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        if key.endswith(".safetensors"):
            self.reads += 1
            if self.reads > self.refuse_after:
                raise StoreUnavailable(f"{key}: gone for now")
        super().get_into(key, byte_range, buffer)
        if self.damage and key.endswith(".safetensors"):
            memoryview(buffer)[len(memoryview(buffer)) // 2] ^= 1


def a_model(seed: int) -> Model:
    rng = np.random.default_rng(seed)
    shapes = {"a": (300, 100), "b": (7,), "c": (0, 3), "d": (64, 65), "e": (20_001,)}
    return {name: rng.integers(0, 2**16, shape, dtype=np.uint16) for name, shape in shapes.items()}


def a_registry(store: MemoryStore, spool: str | Path | None = ":memory:", **push: Any) -> Registry:
    options = Options(push=PushOptions(dtype="keep", **push), pull=PullOptions(spool=spool))
    return Registry(store, "run", options, dependencies=Dependencies(retrying=lambda store: store))


def raw(model: Model) -> dict[str, bytes]:
    return {name: tensor.tobytes() for name, tensor in model.items()}


@pytest.fixture
def store() -> Watched:
    store, model = Watched(), a_model(0)
    with a_registry(store) as registry:
        registry.push(0, model)
        for version in (1, 2):
            model["a"][version] ^= 3
            model["e"][version::500] ^= 1
            registry.push(version, model)
    return store


def newest() -> Model:
    model = a_model(0)
    for version in (1, 2):
        model["a"][version] ^= 3
        model["e"][version::500] ^= 1
    return model


@pytest.fixture(autouse=True)
def _no_files_and_several_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a file was made")

    monkeypatch.setattr("pulse_registry.pull.fetch.SpoolFile", refused)
    with small_groups(1 << 13):
        yield


@pytest.mark.parametrize("version", [0, 1, 2])
def test_live_weights_get_the_version_in_place_and_no_file_is_made(store: Watched, version: int):
    into = {name: np.full_like(tensor, 9) for name, tensor in a_model(1).items()}
    places = {name: tensor.ctypes.data for name, tensor in into.items()}
    with a_registry(store) as registry:
        result = registry.pull(version, into=into, replace=True)
        assert result.changed == sum(tensor.size for tensor in into.values())
        assert raw(into) == raw(registry.load(version, framework="numpy"))
        registry.verify(version, model=into)
    assert {name: tensor.ctypes.data for name, tensor in into.items()} == places


def test_strided_weights_are_filled_as_others_are(store: Watched):
    into = {name: np.zeros((*tensor.shape, 2), np.uint16)[..., 0] for name, tensor in a_model(1).items()}
    with a_registry(store) as registry:
        registry.pull(2, into=into, replace=True)
    assert raw({name: np.ascontiguousarray(tensor) for name, tensor in into.items()}) == raw(newest())


def test_a_damaged_piece_changes_nothing(store: Watched):
    into, store.damage = a_model(1), True
    with a_registry(store) as registry, pytest.raises(CorruptObject, match="piece"):
        registry.pull(2, into=into, replace=True)
    assert raw(into) == raw(a_model(1))


def test_a_transfer_that_is_torn_changes_nothing_and_the_next_pull_is_whole(store: Watched):
    into, store.refuse_after = a_model(1), 0
    with a_registry(store) as registry:
        with pytest.raises(StoreUnavailable):
            registry.pull(2, into=into, replace=True)
        assert raw(into) == raw(a_model(1))
        store.refuse_after = 1 << 30
        registry.pull(2, into=into, replace=True)
    assert raw(into) == raw(newest())


def test_weights_that_are_nearly_the_version_get_a_change_that_can_be_undone(store: Watched):
    into = a_model(0)
    with a_registry(store) as registry:
        registry.pull(0, into=into, replace=True)
        with a_registry(store, keyframe_every=1) as trainer:
            model = newest()
            model["b"][3] ^= 1
            trainer.push(3, model)
        staged = registry.stage(3, into=into)
        assert raw(into) == raw(a_model(0))
        staged.apply()
        assert raw(into) == raw(model)


@pytest.mark.slow
def test_what_was_staged_is_given_back_when_it_is_discarded(store: Watched):
    from pulse_registry.pull.download import MemoryShard

    def alive() -> int:
        gc.collect()
        return sum(isinstance(thing, MemoryShard) for thing in gc.get_objects())

    into, before = a_model(1), alive()
    with a_registry(store) as registry:
        staged = registry.stage(2, into=into, replace=True)
        assert alive() > before
        staged.discard()
        del staged
        until(lambda: alive() == before)
        registry.pull(2, into=into, replace=True)
        until(lambda: alive() == before)


def test_memory_is_named_by_option_and_by_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = str(tmp_path / "registry")
    with pulse_registry.open(root, run="run") as trainer:
        trainer.push(0, {"w": np.ones((4, 4), np.float32)})
    for given in (":memory:", None):
        if given is None:
            monkeypatch.setenv("PULSE_SPOOL", ":memory:")
        into = {"w": np.zeros((4, 4), np.float32)}
        with pulse_registry.open(root, run="run", pull=PullOptions(spool=given)) as worker:
            worker.pull("latest", into=into, replace=True, cast=True)
        assert into["w"].tobytes() == np.ones((4, 4), np.float32).tobytes()
