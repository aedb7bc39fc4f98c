"""A worker that holds a version and is led over a keyframe gets a short change, which it can take back."""

from __future__ import annotations

import numpy as np
import pytest

import pulse_registry
from pulse_registry import InvalidArgument, Registry

VERSIONS = 6


@pytest.fixture
def registry(tmp_path) -> Registry:
    rng = np.random.default_rng(5)
    weights = {"w": rng.integers(0, 2**16, 4000, dtype=np.uint16)}
    registry = pulse_registry.open(
        str(tmp_path),
        run="r",
        push=pulse_registry.PushOptions(keyframe_every=VERSIONS - 1),
        compute=pulse_registry.ComputeOptions(backend="reference"),
    )
    for step in range(VERSIONS):
        registry.push(step, weights)
        # Every step changes the same few cells to anything: the chain then costs more than the keyframe.
        weights["w"][:900] = rng.integers(0, 2**16, 900, dtype=np.uint16)
    registry.close()
    return pulse_registry.open(str(tmp_path), run="r", compute=pulse_registry.ComputeOptions(backend="reference"))


def test_the_change_over_a_keyframe_is_sparse_and_can_be_undone(registry: Registry) -> None:
    worker = {"w": np.empty(4000, np.uint16)}
    registry.pull(0, into=worker)
    before = worker["w"].copy()
    staged = registry.stage("latest", into=worker)
    assert [leg.kind for leg in staged.route.legs][:1] == ["keyframe"]
    assert staged.changed <= 900
    staged.apply()
    assert np.array_equal(worker["w"], registry.load("latest", framework="numpy")["w"])
    staged.undo()
    assert np.array_equal(worker["w"], before)
    assert registry.pull("latest", into=worker).version == VERSIONS - 1


def test_weights_that_held_nothing_known_are_replaced_whole_and_say_so(registry: Registry) -> None:
    worker = {"w": np.empty(4000, np.uint16)}
    with registry.stage("latest", into=worker) as staged:
        assert staged.changed == 4000
        staged.apply()
        with pytest.raises(InvalidArgument, match="replaced whole"):
            staged.undo()
