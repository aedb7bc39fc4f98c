"""The benchmark of the GPU kernels runs, under Triton's interpreter, at a size whose times mean nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.gpu.policy import LAYER, make_policy, needed_bytes, sizes_of
from benchmarks.gpu.suite import LIMITS, gpu_document, rows_of_policy
from benchmarks.results import rows_of

CELLS = 500


@pytest.fixture(scope="module")
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    device = request.config.getoption("--device")
    found = gpu_document(device, (CELLS,), 0.01, 1, seed=4, say=lambda _: None, tile=1024)
    parsed: dict[str, Any] = json.loads(json.dumps(found))
    return parsed


@pytest.mark.slow
def test_everything_is_measured_beside_torchs_own_way(document: dict[str, Any]) -> None:
    (measures,) = document["policies"]
    assert measures["cells"] == CELLS
    assert 0.005 < measures["changed_share"] < 0.05
    assert {"diff", "nonzero", "apply", "index_put", "index_copy", "apply_dense"} <= set(measures["milliseconds"])
    assert all(value > 0 for value in measures["milliseconds"].values())
    assert measures["bits"]["class"] > 0
    assert document["seed"] == 4
    assert "triton" in document["versions"]


@pytest.mark.slow
def test_limits_are_for_the_size_that_they_were_set_for(document: dict[str, Any]) -> None:
    assert not [row for row in rows_of(document) if row.limit is not None]
    rows = rows_of_policy(document["policies"][0], limited=True)
    assert {row.key.rpartition(".")[2]: row.limit for row in rows if row.limit is not None} == LIMITS
    assert {row.sense for row in rows if row.limit is not None} == {"at most"}


@pytest.mark.parametrize("cells", [1, 1000, sum(LAYER), 8_000_000_000, 30_000_000_000])
def test_a_policy_has_the_cells_asked_for(cells: int) -> None:
    sizes = sizes_of(cells)
    assert sum(sizes) == cells
    assert all(0 < size <= max(LAYER) for size in sizes)
    assert needed_bytes(cells) > 4 * cells


@pytest.mark.slow
def test_the_same_seed_gives_the_same_states_and_another_seed_others() -> None:
    one, again, other = (make_policy(5000, 0.01, "cpu", seed, tile=1024) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.old + one.new, again.old + again.new, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.old, other.old, strict=True))
    near = [abs(int(a) - int(b)) for a, b in zip(torch.cat(one.old), torch.cat(one.new), strict=True) if a != b]
    assert sum(step == 1 for step in near) > 0.5 * len(near)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device, and it would be measured")
def test_the_command_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["gpu", "--out", str(tmp_path)])
    assert ran.exit_code == 2
    assert "no CUDA device" in ran.output
    assert not list(tmp_path.iterdir())
