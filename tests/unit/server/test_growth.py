"""What an answer takes does not grow with the run that it is of: bodies that are made, legs, bytes."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest

from pulse_registry.log import RunState
from pulse_registry.log.leg import Leg
from pulse_schemas.api import KeyframeMark, LegBody, ObjectBody, PatchMark, VersionBody
from tests.support.apps import app_of
from tests.support.records import RUN, chain, keyframe
from tests.unit.server.calling import calling

SIZES = (300, 3_000)
MADE = (VersionBody, PatchMark, KeyframeMark, LegBody, ObjectBody)
PATHS = [
    "",
    "/versions/latest",
    "/versions/150",
    "/versions/step:1500",
    "/versions?limit=40",
    "/versions?after={middle}&limit=40",
    "/versions?kind=keyframe&limit=40",
    "/versions?kind=patch&limit=40",
    "/versions?kind=patch&after={middle}&limit=40",
    "/versions?min_step={last}",
    "/chain?limit=40",
    "/chain?after={middle}&until={middle}",
    "/route?limit=40",
    "/route?from={near}",
    "/workers",
]


@functools.cache
def run_of(versions: int) -> RunState:
    return chain(versions).attach(keyframes=(keyframe(100), keyframe(200))).state


@pytest.mark.parametrize("path", PATHS)
def test_a_run_of_ten_times_as_many_versions_costs_no_more_bodies_and_bytes(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[tuple[Counter[str], int]] = []
    for versions in SIZES:
        made: Counter[str] = Counter()
        for kind in MADE:
            monkeypatch.setattr(kind, "model_construct", _counted(kind, made))
        places = {"middle": versions // 2, "last": 10 * (versions - 1), "near": versions - 10}
        with calling(app_of(run_of(versions))) as call:
            answer = call("GET", f"/v1/runs/{RUN}{path.format(**places)}")
        monkeypatch.undo()
        assert answer.status == 200
        costs.append((made, len(answer.body)))
    (few, short), (many, long) = costs
    assert many.total() <= few.total() + 1  # a page begins with a keyframe or not
    assert many.total() <= 90
    assert long <= 1.2 * short + 20  # its numbers have more digits


def _counted(kind: Any, made: Counter[str]) -> Any:
    construct = kind.model_construct

    def counted(*args: Any, **values: Any) -> Any:
        made[kind.__name__] += 1
        return construct(*args, **values)

    return counted


def test_of_a_long_route_the_legs_that_are_answered_are_made_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    state = run_of(3_000)
    legs = type(state.edges).legs

    def counted(edges: Any, rows: Any) -> list[Leg]:
        asked.append(len(rows))
        return legs(edges, rows)

    monkeypatch.setattr(type(state.edges), "legs", counted)
    with calling(app_of(state)) as call:
        assert call("GET", f"/v1/runs/{RUN}/route?from=0&limit=40").status == 200
    assert asked == [40]
