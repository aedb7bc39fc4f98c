"""The benchmark of routes runs, on runs whose times mean nothing, and says what it is to say."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.results import Row, rows_of
from benchmarks.routes import SHAPES, a_run, app, next_commit
from pulse_registry.log import RunState
from pulse_registry.log.fold import advance
from pulse_registry.pull.route import plan, search_near, starts_of
from pulse_registry.store.prices import Prices

pytestmark = pytest.mark.slow
VERSIONS = 600


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    out: Path = tmp_path_factory.mktemp("routes") / "routes.json"
    answer = CliRunner().invoke(app, ["--versions", str(VERSIONS), "--repeats", "1", "--out", str(out)])
    assert answer.exit_code == 0, answer.output
    return {row.key: row for row in rows_of(json.loads(out.read_text()))}


@pytest.fixture(scope="module")
def ladder() -> RunState:
    return a_run(SHAPES[1], VERSIONS)


def test_every_search_has_its_time_and_the_limit(rows: dict[str, Row]) -> None:
    for shape in SHAPES:
        found = [row for key, row in rows.items() if key.startswith(shape.name) and row.unit == "ms"]
        assert len(found) == 9
        assert sum(row.limit == 50.0 for row in found) == 8
        assert all(row.value >= 0 for row in found)


def test_no_route_of_a_ladder_has_more_objects_than_twice_the_logarithm(rows: dict[str, Row]) -> None:
    assert [row.holds for key, row in rows.items() if key.endswith(".objects")] == [True, True]


@pytest.mark.parametrize("object_cost", [0, 65536, 16 << 20])
def test_at_any_distance_a_ladder_s_routes_are_short_whatever_an_object_costs(
    ladder: RunState, object_cost: int
) -> None:
    rng = random.Random(object_cost)
    for _ in range(60):
        have, target = sorted(rng.sample(range(VERSIONS), 2))
        route = plan(ladder, target, have=have, prices=Prices(object_cost))
        assert route.objects <= 2 * math.log2(target - have) + 2
        assert route == search_near(ladder, target, starts_of(ladder, have, ()), Prices(object_cost), ())


def test_the_runs_are_what_they_are_called(ladder: RunState) -> None:
    assert len(list(a_run(SHAPES[0], 300).patches)) == 299
    assert len(list(a_run(SHAPES[2], 2500).keyframes)) == 3
    assert {p.target - p.base for p in ladder.patches} == {2**k for k in range(10)}
    assert plan(a_run(SHAPES[0], 300), 299, have=0).objects == 299
    newer = ladder.copy()
    advance(newer, next_commit(ladder, random.Random(0)), "f" * 64)
    assert plan(newer, VERSIONS, have=VERSIONS - 1).objects == 1
