"""torch.distributed.checkpoint brings sharded models of four real ranks to versions, bit for bit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import pulse_registry
from tests.scenarios.sharded.policy import VERSIONS, Policy, train
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
SIZE = 4
Cases = dict[str, dict[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with a run that one process pushed."""
    folder = tmp_path_factory.mktemp("registry")
    torch.manual_seed(0)
    policy = Policy()
    options = pulse_registry.PushOptions(coder="gap", keyframe_share=1e9)
    with pulse_registry.open(str(folder), run="run", push=options) as registry:
        for step in range(VERSIONS):
            registry.push(step, policy)
            train(policy, step)
    return folder


@pytest.fixture(scope="module")
def twin(folder: Path) -> list[Any]:
    """Return what the versions of that run are."""
    with pulse_registry.open(str(folder), run="run") as registry:
        return [[one.step, one.changed, one.digest, one.layout] for one in registry.versions()]


@pytest.fixture(scope="module")
def cases(folder: Path) -> Cases:
    """What each rank found in each case, of one process group, in one process that imports torch once."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.scenarios.sharded.dcp_ranks", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=5 * HANG_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: Cases = {}
    for line in ran.stdout.splitlines():
        case, rank, said = json.loads(line)
        found.setdefault(case, {})[rank] = said
    assert all(len(ranks) == SIZE for ranks in found.values())
    return found


@pytest.mark.parametrize(
    "case",
    [
        "fsdp together",
        "hsdp together",
        "two_dimensions together",
        "plain together",
        "fsdp alone",
        "two_dimensions alone",
    ],
)
def test_every_rank_holds_its_shards_of_each_version_that_is_loaded(cases: Cases, case: str) -> None:
    for found in cases[case].values():
        assert found["wrong"] == []
        assert [version for version, _, _ in found["results"]] == [*range(VERSIONS), 0, VERSIONS - 1]
        checked = {how for _, how, _ in found["results"]}
        assert checked == ({"state"} if case.endswith("together") else {"slices"})
    held = sum(found["share"] for found in cases[case].values())
    assert (held < 2.5) == (case.partition(" ")[0] != "plain")


@pytest.mark.parametrize("case", ["fsdp saved", "hsdp saved", "two_dimensions saved", "plain saved"])
def test_what_the_ranks_save_is_what_one_process_would_have_pushed(cases: Cases, twin: list[Any], case: str) -> None:
    for found in cases[case].values():
        assert found["versions"] == twin
        assert found["kinds"] == ["keyframe", *["patch"] * (VERSIONS - 1)]


def test_a_rank_without_a_tensor_takes_part_in_what_the_others_save_and_load(cases: Cases) -> None:
    found = cases["dealt"]
    assert [found[rank]["wrong"] for rank in range(SIZE)] == [[]] * SIZE
    assert [found[rank]["checked"] for rank in range(SIZE)] == ["state"] * SIZE
    assert found[SIZE - 1]["held"][0] == found[0]["held"][1] == 0


def test_all_ranks_take_the_version_of_the_first(cases: Cases) -> None:
    for case in ("other_versions together", "other_versions alone"):
        assert [found["wrong"] for found in cases[case].values()] == [[]] * SIZE


def test_what_one_rank_can_not_take_is_taken_by_none(cases: Cases) -> None:
    for found in cases["refused together"].values():
        assert found["changed"] == []
        assert "rank 2: tensor 'layers.0.up.weight" in found["dtype"][0]
        assert "F64" in found["dtype"][0]
        assert found["save"][0].startswith("InvalidArgument: 4 ranks save, and the registry was opened for 1")
        assert found["alone"][0].startswith("InvalidArgument: the registry was opened for 4 ranks, and 1 load")
