"""The benchmark of distances runs, at a size whose bytes mean little, and holds real routes against real diffs."""

from __future__ import annotations

import math

from benchmarks.ladder import measure_ladder
from benchmarks.plots import plots
from benchmarks.report import tables
from benchmarks.results import rows_of
from benchmarks.synthetic import few_shapes, synthetic_states


def test_every_distance_has_its_objects_and_bytes() -> None:
    states = synthetic_states(10_000, 33, shapes_of=few_shapes)
    said: list[str] = []
    document = measure_ladder(states, starts=2, targets=6, say=said.append)
    rows = {row.key: row for row in rows_of(document)}
    assert set(rows) == {"objects", "mean", "worst", "join", "writes"}
    assert rows["objects"].holds
    assert 1.0 <= rows["mean"].value <= rows["worst"].value
    assert set(document["blocks"]) >= {"4", "16"}
    for row in document["distances"]:
        assert row["most_objects"] <= 2 * math.log2(row["distance"] + 1) + 2
        assert row["direct_bytes"] <= row["bytes"] <= row["chain_bytes"]
    assert document["written_bytes"] == sum(found["bytes"] for found in document["blocks"].values())
    assert "compacting" in said
    assert [plot.name for plot in plots([document])] == ["far-behind-synthetic"]
    assert "| versions behind |" in tables([document])
