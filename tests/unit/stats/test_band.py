"""Bands: what a walk keeps takes no more than its estimate, whatever steps change, and a keyframe may change all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pulse_kernels import get_backend
from pulse_registry.format.sparse_update import Delta
from pulse_registry.log.leg import Leg
from pulse_registry.stats import band
from pulse_registry.stats.band import bands, bytes_a_cell
from pulse_registry.stats.group_walk import GroupWalk
from pulse_registry.stats.steps import Step, steps_of
from pulse_registry.weights.cell_space import Geometry
from tests.support.groups import geometry_of, small_groups
from tests.support.records import DictStore
from tests.support.registries import quick, state_of
from tests.unit.compaction.runs import NEVER


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("share", [0.002, 0.02, 0.3, 1.0])
def test_what_is_kept_of_a_group_takes_no_more_than_its_estimate(share: float, disjoint: bool) -> None:
    cells = 5000
    geometry = geometry_of({"w": np.zeros(cells, np.uint16)}, group_bytes=2 * cells)
    walk, changed = GroupWalk(get_backend("reference"), geometry.groups[0]), int(share * cells)
    at = 0
    for target in range(1, 65):
        index = np.sort((np.arange(at, at + changed) % cells).astype(np.uint32))
        walk.step(target - 1, target, Delta(index, np.ones(changed, np.uint16)))
        at += changed if disjoint else 0
        waiting = walk.waiting.values()
        kept = {id(a): a.nbytes for w in waiting for a in (w.touched, w.net.index, w.net.distance)}
        assert sum(kept.values()) <= cells * bytes_a_cell(share, 2)


def test_a_step_by_a_keyframe_may_change_every_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    store, model = DictStore(), {"w": np.zeros(2000, np.uint16)}
    with small_groups(), quick(store, coder="gap", keyframe_share=NEVER) as registry:
        for version in range(3):
            model["w"][version] += 1
            registry.push(version, model)
        geometry = Geometry(registry.layout())
    state = state_of(store)
    patches = [step for step in steps_of(state, 0, 2, weights=True) if isinstance(step, Step)]
    leg = Leg("keyframe", None, 2, keyframe=state.keyframe(0))
    monkeypatch.setattr(band, "BAND_BYTES", geometry.cells * 4)
    assert len(bands(geometry, patches, weights=True)) == 1
    assert len(bands(geometry, [patches[0], replace(patches[1], legs=(leg,))], weights=True)) > 10
