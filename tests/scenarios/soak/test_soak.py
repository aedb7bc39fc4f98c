"""Real processes side by side for minutes: nothing fails inside retention, whoever stalls, whatever clocks say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.soak.__main__ import run


@pytest.mark.sweep
@pytest.mark.parametrize(("store", "minutes"), [("files", 1.0), ("seaweedfs", 5.0)], ids=["files", "seaweedfs"])
def test_workers_a_trainer_a_compactor_and_a_collector_get_along(store: str, minutes: float, tmp_path: Path) -> None:
    result = run(store, minutes, tmp_path)
    assert result["failures"] == []


@pytest.mark.sweep
def test_it_is_the_same_with_clocks_that_are_right(tmp_path: Path) -> None:
    assert run("files", 1.0, tmp_path, skew=False)["failures"] == []
