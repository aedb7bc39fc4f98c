"""The phases of real pushes and pulls: each is there, says its bytes, and lies where it must."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pulse_registry import PullResult, PushResult
from pulse_registry.options import Options
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.timeline import Phase, extents
from tests.support.records import DictStore

PUSH, PULL = ["diff", "code", "hash", "upload", "commit"], ["route", "fetch", "decode", "verify", "apply"]


def model(value: int = 0) -> dict[str, Any]:
    cells = {"a": np.zeros((40, 50), np.uint16), "b": np.zeros(30, np.uint8)}
    for array in cells.values():
        array.reshape(-1)[:3] = value
    return cells


def by_name(result: PushResult | PullResult) -> dict[str, Phase]:
    assert result.phases == extents(result.timeline)
    assert all(0 <= phase.start <= phase.end for phase in result.timeline)
    assert [phase.start for phase in result.timeline] == sorted(phase.start for phase in result.timeline)
    return {phase.phase: phase for phase in result.timeline}


@pytest.fixture
def registry() -> Any:
    with Registry(DictStore(), "run") as opened:
        yield opened


@pytest.mark.parametrize("coder", ["gap", "class"])
def test_a_push_of_a_patch_has_all_phases_in_their_order(coder: Any):

    with Registry(DictStore(), "run", Options(push=PushOptions(coder=coder, dtype="keep"))) as registry:
        registry.push(0, model())
        result = registry.push(1, model(1))
    phases = by_name(result)
    assert sorted(phases) == sorted(PUSH)
    assert phases["diff"].start < phases["code"].start < phases["hash"].start < phases["upload"].start
    assert phases["code"].end <= phases["upload"].start < phases["upload"].end <= phases["commit"].start
    assert phases["diff"].nbytes == result.full_nbytes
    assert phases["code"].nbytes == phases["upload"].nbytes == result.nbytes
    assert result.nbytes < phases["hash"].nbytes < 2 * result.nbytes, "each group, and the whole object"


def test_a_push_of_a_keyframe_is_coded_nowhere(registry: Registry):
    phases = by_name(registry.push(0, model()))
    assert sorted(phases) == ["commit", "diff", "upload"]


def test_a_pull_has_all_phases_whatever_its_route(registry: Registry):
    registry.push(0, model())
    first = registry.push(1, model(1))
    second = registry.push(2, model(2))
    into = model()
    by_keyframe = by_name(registry.pull(0, into=into))
    by_patches = by_name(registry.pull(2, into=into))
    by_undo = by_name(registry.pull(0, into=into))
    by_nothing = by_name(registry.pull(0, into=into))
    for phases in (by_keyframe, by_patches, by_undo, by_nothing):
        assert sorted(phases) == sorted(PULL)
        assert phases["route"].end <= phases["fetch"].start
        assert phases["verify"].end <= phases["apply"].start
    assert by_patches["fetch"].nbytes == first.nbytes + second.nbytes
    assert 0 < by_patches["decode"].nbytes < first.nbytes + second.nbytes
    assert by_keyframe["fetch"].nbytes > 0
    assert by_undo["fetch"].nbytes == by_nothing["fetch"].nbytes == 0


def test_what_is_staged_tells_of_each_apply_alone(registry: Registry):
    registry.push(0, model())
    registry.push(1, model(1))
    into = model()
    with registry.stage(1, into=into) as staged:
        first, again = staged.apply(), staged.apply()
    assert first.timeline[:-1] == again.timeline[:-1]
    assert first.timeline[-1].phase == again.timeline[-1].phase == "apply"
    assert again.timeline[-1].start >= first.timeline[-1].end
