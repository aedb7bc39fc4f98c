"""What ranks read of their slices again and again: nothing is made anew of those that stay as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pulse_registry import Registry, Slice
from pulse_registry.weights import model as weights_model
from pulse_registry.weights import reading
from tests.support.ranks import on_ranks
from tests.support.records import DictStore
from tests.support.registries import quick

SLICES = 50


def test_later_pushes_of_ranks_look_at_each_slice_and_make_no_view(monkeypatch: pytest.MonkeyPatch) -> None:
    store, made = DictStore(), list[str]()
    view_of = weights_model.view_of

    def counted(name: str, *args: Any) -> weights_model.View:
        made.append(name)
        return view_of(name, *args)

    monkeypatch.setattr(weights_model, "view_of", counted)
    monkeypatch.setattr(reading, "view_of", counted)

    def push(registry: Registry, rank: int) -> list[tuple[int, int]]:
        held = {f"{n}": np.zeros((2, 4), np.uint16) for n in range(SLICES)}
        model = {name: Slice(array, of=(4, 4), at=(2 * rank, 0)) for name, array in held.items()}
        found = []
        for step in range(4):
            held["7"][1, 2] = step
            if step == 3:
                model["8"] = Slice(np.full((2, 4), 9, np.uint16), of=(4, 4), at=(2 * rank, 0))
            result = registry.push(step, model)
            made_here = [name for name in made if f"[{2 * rank}:" in name]
            found.append((result.changed, len(made_here)))
        return found

    by_rank = on_ranks([store, store], push, keyframe_share=1e9)
    for found in by_rank:
        assert [changed for changed, _ in found] == [16 * SLICES, 2, 2, 18]
        first, tables, later, other = [views for _, views in found]
        assert (first, tables, later) == (SLICES, 2 * SLICES, 2 * SLICES)  # the second push finds where the cells are
        assert other > later


def test_parts_of_slices_that_do_not_lie_end_to_end_are_read_anew_by_each_push() -> None:
    """What is kept of them is no address of a copy, which is let go of after the push that read it."""
    stores, alone = [DictStore()] * 2, DictStore()

    def push(registry: Registry, rank: int) -> list[str]:
        columns, found = np.zeros((64, 8), np.uint16)[:, 2:6], list[str]()  # both hold them: each speaks for a half
        for step in range(5):
            columns[:] = step
            found.append(registry.push(step, {"w": Slice(columns, of=(64, 4), at=(0, 0))}).digest)
            _ = [np.full(32 * 4, 999, np.uint16) for _ in range(64)]  # they lie where something was let go of
        return found

    with quick(alone, keyframe_share=1e9) as registry:
        wanted = [registry.push(step, {"w": np.full((64, 4), step, np.uint16)}).digest for step in range(5)]
    assert on_ranks(stores, push, keyframe_share=1e9) == [wanted] * 2
