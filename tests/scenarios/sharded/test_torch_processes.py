"""Real processes, over gloo: what they push is, byte for byte, what one process stores; and one of them dies."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pulse_registry
from tests.support.groups import small_groups
from tests.support.parts import small_parts
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
GROUP_BYTES, PART_GROUPS = 512, 2
"""So small that each patch of a small policy has several parts; the ranks are told these."""
Found = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class Ran:
    """What each rank found in each case, by the number of ranks, and the registry that they wrote."""

    folder: Path
    sizes: Sequence[int]
    cases: Mapping[tuple[int, str], Found]

    def of(self, name: str) -> dict[int, Found]:
        """Return what was found in the cases whose names begin so, of all sizes; there is one at least."""
        found = {size: case for (size, full), case in self.cases.items() if full == name}
        assert found
        assert all(sorted(case) == [*range(size)] for size, case in found.items())
        return found

    def objects(self, run: str) -> dict[str, bytes]:
        """Return all objects of a run but the log, by keys without write ids."""
        root = self.folder / run
        files = [path for kind in ("objects", "layouts") for path in (root / kind).rglob("*") if path.is_file()]
        return {re.sub(r"-[0-9a-f]{32}", "", str(path.relative_to(root))): path.read_bytes() for path in files}


@pytest.fixture(
    scope="module", params=[(4, 2), pytest.param((4, 2, 8), marks=pytest.mark.sweep)], ids=lambda sizes: str(sizes)
)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run all cases, in one process that imports torch once and whose forks are the ranks."""
    folder = tmp_path_factory.mktemp("registry")
    sizes: Sequence[int] = request.param
    made = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.scenarios.sharded.process_ranks",
            str(folder),
            str(GROUP_BYTES),
            str(PART_GROUPS),
            *map(str, sizes),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=10 * HANG_S,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    cases: dict[tuple[int, str], dict[int, Any]] = {}
    for line in made.stdout.splitlines():
        name, rank, found = json.loads(line)
        size, _, case = name.partition(" ")
        cases.setdefault((int(size), case), {})[rank] = found
    return Ran(folder, sizes, cases)


def check_twin(found: Found, objects: Mapping[str, bytes], twin: Mapping[str, bytes]) -> None:
    """Check that all ranks were told what the twin was, and that the same objects are stored."""
    results = [rank["results"] for rank in found.values()]
    assert results == [found[0]["twin"]] * len(found)
    assert objects == twin
    assert any("/patch/" in key for key in objects)


TRAINED = ["fsdp gap", "hsdp gap", "two_dimensions gap", "replicas auto", "two_dimensions class"]


@pytest.mark.parametrize("case", TRAINED)
def test_what_ranks_push_while_they_train_is_what_one_process_stores(ran: Ran, case: str) -> None:
    make, coder = case.split()
    for size, found in ran.of(f"trains {case}").items():
        run = f"{make}-{size}-{coder}"
        check_twin(found, ran.objects(run), ran.objects(f"{run}-twin"))
        kinds = [result[2] for result in found[0]["results"]]
        assert kinds == ["keyframe", "patch", "patch"]
        assert sum(key.endswith("/patch-head") for key in ran.objects(run)) == 2  # in parts
        assert sum("/keyframe/" in key for key in ran.objects(run)) > 1


@pytest.mark.parametrize("case", TRAINED[:-1])
def test_sharded_models_of_the_same_kind_and_plain_workers_pull_it_bit_for_bit(ran: Ran, case: str) -> None:
    for size, found in ran.of(f"trains {case}").items():
        assert [rank["wrong"] for rank in found.values()] == [[]] * size
        assert {how for rank in found.values() for how in rank["together"]} == {"state"}
        whole = case == "replicas auto" or (case == "hsdp gap" and size == 2)
        assert {how for rank in found.values() for how in rank["alone"]} == {"state" if whole else "slices"}


def test_processes_share_a_host_copy_to_pull_patches_that_need_whole_groups(ran: Ran) -> None:
    for size, found in ran.of(f"trains {TRAINED[-1]}").items():
        assert [(rank["wrong"], rank["together"]) for rank in found.values()] == [([], ["state"] * 5)] * size


@pytest.mark.parametrize("make", ["fsdp", "hsdp", "two_dimensions", "replicas"])
def test_ranks_make_outer_rounds_as_one_process_with_the_whole_model_does(ran: Ran, make: str) -> None:
    for found in ran.of(f"outer {make}").values():
        assert [rank["differing"] for rank in found.values()] == [[]] * len(found)
        mine, twin = found[0]["digests"]
        assert mine == twin
        assert len(set(mine)) == len(mine) == 4


def test_whole_tensors_on_one_rank_each_are_pushed_and_pulled_as_by_one_process(ran: Ran) -> None:
    for size, found in ran.of("experts").items():
        check_twin(found, ran.objects(f"experts-{size}"), ran.objects(f"experts-{size}-twin"))
        assert [(rank["wrong"], rank["together"]) for rank in found.values()] == [([], ["state"])] * size


def test_three_pushes_are_under_way_while_the_model_trains_on(ran: Ran) -> None:
    for size, found in ran.of("pending").items():
        check_twin(found, ran.objects(f"pending-{size}"), ran.objects(f"pending-{size}-twin"))
        assert [rank["done early"] for rank in found.values()] == [[False] * 3] * size


def test_jobs_of_other_sizes_go_on_with_a_run(ran: Ran) -> None:
    for found in ran.of("resized").values():
        check_twin(found, ran.objects("resized"), ran.objects("resized-twin"))
    with pulse_registry.open(str(ran.folder), run="resized") as registry:
        assert [version.step for version in registry.versions()] == [*range(2 * len(ran.sizes))]


def test_a_killed_rank_is_named_by_the_others_and_commits_nothing_and_the_next_job_goes_on(ran: Ran) -> None:
    for size in ran.sizes:
        latest = -1
        deaths = [number for ranks, name in ran.cases if ranks == size and (number := name.partition("killed ")[2])]
        assert len(deaths) > 3
        for number in deaths:
            found = ran.cases[size, f"killed {number}"]
            [victim] = {*range(size)} - {*found}
            for rank in found.values():
                assert victim in rank["ranks"]
                assert "died, or lost its connection" in rank["lost"]
                assert rank["again"].startswith("PeerLost: this handle can't be used since a rank was lost")
                assert rank["wrong"] == []
                assert (rank["before"], rank["pushed"][0]) == (latest, latest + 1)
                # The second push is there if the coordinator was killed once its record was: whole, or not at all.
                assert rank["latest"] == latest + 1 + rank["recorded"]
            latest = next(iter(found.values()))["latest"]
        sizes = small_groups(GROUP_BYTES), small_parts(PART_GROUPS)
        with sizes[0], sizes[1], pulse_registry.open(str(ran.folder), run=f"killed-{size}") as registry:
            for version in registry.versions():
                assert registry.verify(version.version).version == version.version


def test_what_can_not_be_pushed_is_told_with_what_to_do(ran: Ran) -> None:
    for found in ran.of("refused").values():
        assert [rank == found[0] for rank in found.values()] == [True] * len(found)
        said = found[0]
        for one in ("flat", "original"):
            assert "Shard it by torch.distributed.fsdp.fully_shard (FSDP2)" in said[f"fsdp1-{one}"]
        assert "'w' is a DTensor whose shards can't be told" in said["partial"]
        assert "redistribute it to Shard or Replicate first" in said["partial"]
        assert "since its memory was freed or they were offloaded: bring them back first" in said["freed"]
        for one in ("meta", "meta-shards"):
            assert "give the model memory (to_empty) and weights first" in said[one]
        assert all(one.startswith("InvalidModel: rank 0: ") for one in said.values())


def test_a_push_on_one_rank_alone_names_the_ranks_that_did_not_come(ran: Ran) -> None:
    for found in ran.of("one_rank").values():
        assert found[0]["seen"].startswith("PeerLost: rank 1 of 2 did not come to open within 3 s (rank 0 came)")
        assert "has to be made on every rank" in found[0]["seen"]
        assert found[1]["late"].startswith("PeerLost: rank 0 of 2 gave up, or closed the registry")
