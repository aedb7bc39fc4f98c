"""Which tensors of a model are not a version's."""

from __future__ import annotations

import uuid

import numpy as np
import pytest

from pulse_registry import BaseMismatch, Slice
from pulse_registry.store import MemoryStore
from tests.support.registries import quick


def test_verify_names_the_slices_that_are_not_the_versions() -> None:
    registry = quick(MemoryStore("differing-" + uuid.uuid4().hex))
    model = {name: np.arange(24, dtype=np.float32).reshape(6, 4) for name in ("a", "b", "c", "d", "e")}
    registry.push(0, model)
    held = {name: whole.copy() for name, whole in model.items()}
    rank = {name: Slice(whole[2:5], of=(6, 4), at=(2, 0)) for name, whole in held.items()}
    assert registry.verify(0, model=rank, partial=True).version == 0
    held["d"][0, 0] = -1.0  # of another rank
    assert registry.verify(0, model=rank, partial=True).version == 0
    held["d"][2, 0] = held["b"][4, 3] = -0.0
    with pytest.raises(BaseMismatch, match=r"version 0: 'b\[2:5, 0:4\]', 'd\[2:5, 0:4\]' differ") as caught:
        registry.verify(0, model=rank, partial=True)
    assert caught.value.tensors == ("b[2:5, 0:4]", "d[2:5, 0:4]")
    for name in held:
        held[name][3] = np.nan
    with pytest.raises(BaseMismatch, match="and 2 more differ"):
        registry.verify(0, model=rank, partial=True)
