"""Weights that are no numbers: allowed, told of, or refused, on their way out and on their way in."""

from __future__ import annotations

from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest

from pulse_registry import InvalidArgument, InvalidModel, PushOptions, Registry
from pulse_registry.events import EventKind
from pulse_registry.options import ComputeOptions, Options, PullOptions
from pulse_registry.weights.dtypes import numpy_dtype
from tests.support.groups import small_groups
from tests.support.records import DictStore

NAN, INF = np.float32(np.nan), np.float32(np.inf)


@pytest.fixture(autouse=True)
def _groups():
    with small_groups():  # a model of a few cells has several
        yield


@contextmanager
def opened(store, policy, told=None, **options):
    chosen = PushOptions(**({"dtype": "keep", "keyframe_share": 100.0, "coder": "gap", "nonfinite": policy} | options))
    with Registry(
        store,
        "math",
        Options(
            push=chosen,
            pull=PullOptions(nonfinite=policy),
            on_event=([] if told is None else told).append,
            compute=ComputeOptions(backend="reference"),
        ),
    ) as registry:
        yield registry


def model(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "counts": np.full(20, -1, np.int32),  # as a float, this would be a NaN
        "w": rng.normal(size=(10, 20)).astype(np.float32),
        "z": rng.normal(size=50).astype(ml_dtypes.bfloat16),
    }


def test_a_scale_that_is_no_number_is_refused_as_a_weight_is():
    scales = np.arange(255, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)
    with opened(DictStore(), "refuse") as trainer:
        assert trainer.push(0, {"scales": scales, "pairs": np.full(4, 0xFF, np.uint8).view(numpy_dtype("F4"))}).cells
        with pytest.raises(InvalidModel, match="tensor 'scales' has NaN or an infinity at flat index 7"):
            trainer.push(1, {"scales": np.where(np.arange(255) == 7, np.uint8(255), 1).astype("u1").view(scales.dtype)})


def same(one, other):
    return all(one[name].tobytes() == other[name].tobytes() for name in other)


def blank(weights):
    return {name: np.zeros_like(tensor) for name, tensor in weights.items()}


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_first_push_with_a_cell_that_is_no_number_is_refused_and_stores_nothing(value):
    store, weights = DictStore(), model()
    with opened(store, "refuse") as trainer:
        weights["w"][7, 3] = value
        with pytest.raises(InvalidModel, match=r"step 5 is not finite: tensor 'w' .* at flat index 143"):
            trainer.push(5, weights)
        assert not [key for key in store.objects if "/objects/" in key or "/layouts/" in key]
        assert trainer.versions() == []
        weights["w"][7, 3] = 1
        assert trainer.push(6, weights).version == 0
        assert same(trainer.pull(into=(mine := blank(weights))) and mine, weights)


@pytest.mark.parametrize("wait", [True, False])
def test_a_push_that_is_refused_leaves_the_shadow_as_it_was(wait):
    store, weights = DictStore(), model()
    with opened(store, "refuse") as trainer:
        trainer.push(0, weights)
        before = dict(store.objects)
        weights["w"][0, 0] += 1
        weights["z"][49] = np.nan
        with pytest.raises(InvalidModel, match="tensor 'z' has NaN or an infinity at flat index 49"):
            trainer.push(1, weights, wait=wait)
        assert store.objects == before
        weights["z"][49] = 2
        result = trainer.push(2, weights)
        assert (result.version, result.changed) == (1, 2)
        weights["w"][1, 1] += 1
        assert trainer.push(3, weights).changed == 1
        with opened(store, "allow") as worker:
            assert same(worker.pull(into=(mine := blank(weights))) and mine, weights)


def test_refused_pushes_between_pushes_on_their_way_lose_nothing():
    store, weights = DictStore(), model()
    with opened(store, "refuse") as trainer:
        futures = [trainer.push(0, weights, wait=False)]
        for step in range(1, 5):
            weights["w"][step, 0] += 1
            futures.append(trainer.push(step, weights, wait=False))
            kept = weights["w"][step, 1]
            weights["w"][step, 1] = NAN
            with pytest.raises(InvalidModel):
                trainer.push(99, weights, wait=False)
            weights["w"][step, 1] = kept
        assert [future.result().version for future in futures] == [0, 1, 2, 3, 4]
        assert [future.result().changed for future in futures[1:]] == [1, 1, 1, 1]
        with opened(store, "allow") as worker:
            assert same(worker.pull(into=(mine := blank(weights))) and mine, weights)


def test_only_cells_that_change_are_looked_at():
    store, weights = DictStore(), model()
    weights["w"][2, 2] = NAN
    with opened(store, "allow") as trainer:
        trainer.push(0, weights)
    with opened(store, "refuse") as trainer:
        weights["w"][0, 0] += 1
        assert trainer.push(1, weights).changed == 1
    with opened(store, "allow") as reader:
        mine = blank(weights)
        reader.pull(0, into=mine)
    with opened(store, "refuse") as worker:
        worker.verify(0, model=mine)
        assert worker.pull(1, into=mine).changed == 1


def test_what_is_rounded_to_an_infinity_is_one():
    weights = {"w": np.full(8, np.float32(3.4e38))}
    with opened(DictStore(), "refuse", dtype="bf16") as trainer, pytest.raises(InvalidModel, match="tensor 'w'"):
        trainer.push(0, weights)
    with opened(DictStore(), "refuse") as trainer:
        assert trainer.push(0, weights).version == 0


def test_all_cells_of_another_layout_are_looked_at():
    store, weights = DictStore(), model()
    with opened(store, "refuse") as trainer:
        trainer.push(0, weights)
        larger = weights | {"new": np.array([1, np.inf], np.float32)}
        with pytest.raises(InvalidModel, match="tensor 'new' has NaN or an infinity at flat index 1"):
            trainer.push(1, larger)
        weights["w"][0, 0] += 1
        assert trainer.push(2, weights).changed == 1


def test_a_push_that_warns_goes_on():
    told, store, weights = [], DictStore(), model()
    with opened(store, "warn", told) as trainer:
        trainer.push(0, weights)
        assert told == []
        weights["w"][3, 4] = NAN
        assert trainer.push(1, weights).version == 1
    (event,) = told
    assert (event.kind, event.run) == (EventKind.NOT_FINITE, "math")
    assert event.message == "step 1 is not finite: tensor 'w' has NaN or an infinity at flat index 64"


def pushed(*steps):
    """Return a store with these versions."""
    store = DictStore()
    with opened(store, "allow") as trainer:
        for number, weights in enumerate(steps):
            trainer.push(number, weights)
    return store


def test_a_pull_of_a_patch_with_a_nan_is_refused_and_changes_nothing():
    first, second, third = model(), model(), model()
    second["w"][9, 19] = -INF
    third["w"][0, 0] = 5
    store = pushed(first, second, third)
    mine = blank(first)
    with opened(store, "refuse") as worker:
        worker.pull(0, into=mine)
        with pytest.raises(InvalidModel, match=r"version 1 is not finite: tensor 'w' .* flat index 199\. Nothing was"):
            worker.pull(1, into=mine)
        assert same(mine, first)
        assert worker.pull(2, into=mine).changed == 1  # the NaN came and went
        assert same(mine, third)


@pytest.mark.parametrize("held", ["nothing", "new tensors", "unknown weights"])
def test_a_pull_of_a_keyframe_with_a_nan_is_refused_and_changes_nothing(held):
    weights = model()
    weights["z"][0] = np.nan
    store, mine = pushed(weights), blank(weights)
    with opened(store, "refuse") as worker, pytest.raises(InvalidModel, match="version 0 is not finite: tensor 'z'"):
        worker.load(0) if held == "nothing" else worker.pull(0, into=mine, replace=held == "unknown weights")
    assert same(mine, blank(weights))


def test_a_nan_in_a_keyframe_that_a_patch_takes_away_is_no_matter():
    first, second = model(), model()
    first["w"][5, 5] = NAN
    store = pushed(first, second)
    mine = blank(first)
    with opened(store, "refuse") as worker:
        assert worker.pull(1, into=mine).version == 1
        assert same(
            {name: np.asarray(tensor) for name, tensor in worker.load(1).items() if name == "w"}, {"w": mine["w"]}
        )
        with pytest.raises(InvalidModel):
            worker.load(0)


def test_a_nan_that_a_patch_brings_onto_a_keyframe_is_seen():
    first, second = model(), model()
    second["w"][5, 5] = NAN
    store = pushed(first, second)
    with opened(store, "refuse") as worker:
        for call in (lambda: worker.load(1), lambda: worker.pull(1, into=blank(first))):
            with pytest.raises(InvalidModel, match=r"version 1 is not finite: tensor 'w' .* flat index 105"):
                call()


def test_a_pull_that_warns_goes_on():
    told, weights = [], model()
    weights["w"][0, 1] = NAN
    mine = blank(weights)
    with opened(pushed(weights), "warn", told) as worker:
        worker.pull(into=mine)
    assert same(mine, weights)
    assert [event.kind for event in told] == [EventKind.NOT_FINITE]


def test_a_policy_that_is_none_is_refused():
    with pytest.raises(InvalidArgument, match="nonfinite is 'ignore'; it is one of allow, warn, refuse"):
        Registry(DictStore(), "math", Options(pull=PullOptions(nonfinite="ignore")))
