"""Ranks as real processes, over gloo: every collective, calls that differ, and ranks that die, hang, close, reopen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pulse_registry.errors import InvalidArgument
from pulse_registry.peers.torch_peers import TorchPeers
from tests.support.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[3]
Cases = dict[str, dict[int, dict[str, Any]]]


def test_without_a_process_group_it_says_what_to_call() -> None:
    with pytest.raises(InvalidArgument, match="init_process_group on every rank first"):
        TorchPeers()


@pytest.fixture(scope="module", params=[pytest.param(size, marks=pytest.mark.slow) for size in (2, 4)])
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def cases(size: int) -> Cases:
    """What each rank found in each case, of one process that imports torch once."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.unit.peers.ranks", str(size)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * HANG_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    cases: Cases = {}
    for line in ran.stdout.splitlines():
        case, rank, found = json.loads(line)
        cases.setdefault(case, {})[rank] = found
    return cases


def test_every_collective_gives_what_the_ranks_gave_whole_and_in_rounds(cases: Cases, size: int) -> None:
    found = cases["every_collective"]
    assert sorted(found) == [*range(size)]
    assert all(rank["calls"] == 35 for rank in found.values())
    assert all(rank["closed"]["class"] == "InvalidArgument" for rank in found.values())


def test_other_calls_are_one_error_on_all_ranks_which_go_on(cases: Cases, size: int) -> None:
    found = cases["other_calls"]
    assert [found[rank] for rank in range(size)] == [found[0]] * size
    last = size - 1
    said = {name: one["message"] for name, one in found[0].items()}
    assert {one["class"] for name, one in found[0].items() if name != "vote"} == {"InvalidArgument"}
    assert f"rank {last} made gather 'x', call 1" in said["other"]
    assert f"rank {last} made all_gather 'boxes', call 2" in said["purpose"]
    assert f"rank {last} made an impossible call 3: exchange has {size + 1} parts for {size} ranks" in said["parts"]
    assert "rank 0 made an impossible call 4: broadcast has nothing to send" in said["nothing"]
    assert (found[0]["vote"]["class"], said["vote"]) == ("CorruptObject", f"rank {last}: damaged")


def test_a_background_thread_talks_beside_the_collectives_of_the_main_thread(cases: Cases, size: int) -> None:
    for found in cases["beside_the_main_thread"].values():
        assert found == {"failed": [], "sum": size * (size + 1) / 2}


def test_subgroups_talk_though_their_ranks_have_other_numbers_of_groups(cases: Cases, size: int) -> None:
    for rank, found in cases["subgroups"].items():
        assert found == {"came": [*range(rank % 2, size, 2)], "not of it": "InvalidArgument"}


def test_a_closed_rank_is_named_and_all_can_open_again(cases: Cases, size: int) -> None:
    last = size - 1
    for rank, found in cases["reopens"].items():
        if rank == last:
            assert found["lost"]["class"] == "InvalidArgument"
        else:
            assert (found["lost"]["class"], found["lost"]["ranks"]) == ("PeerLost", [last])
            assert f"rank {last} of {size} closed the registry" in found["lost"]["message"]
            assert found["later"]["message"].startswith("this handle can't be used since a rank was lost: ")
            assert (found["later"]["class"], found["later"]["ranks"]) == ("PeerLost", [last])


def test_a_call_that_a_rank_breaks_off_ends_the_group(cases: Cases, size: int) -> None:
    last = size - 1
    for found in cases["breaks_off"].values():
        assert (found["lost"]["class"], found["lost"]["ranks"]) == ("PeerLost", [last])
    assert "bytes-like object is required" in cases["breaks_off"][last]["own"]
    assert f"rank {last} of {size} broke off" in cases["breaks_off"][last]["lost"]["message"]


def test_a_silent_rank_is_told_of_and_named_at_the_time_out_and_hears_that_it_is_late(cases: Cases, size: int) -> None:
    last = size - 1
    for rank, found in cases["silent"].items():
        assert (found["lost"]["class"], found["lost"]["ranks"]) == ("PeerLost", [last])
        if rank == last:
            assert f"gave up waiting for this rank, {last} of {size}, at all_gather" in found["lost"]["message"]
        else:
            assert f"rank {last} of {size} did not come to all_gather 'heads', call 2" in found["lost"]["message"]
            assert [f"for rank {last} of {size}, and gives up" in line for line in found["told"]] == [True]


def test_a_rank_that_does_not_open_is_named_and_all_can_open_later(cases: Cases, size: int) -> None:
    last = size - 1
    for rank, found in cases["never_opens"].items():
        assert found["lost"]["class"] == "PeerLost"
        assert found["lost"]["ranks"] == ([*range(last)] if rank == last else [last])
        if rank != last:
            assert [f"for rank {last} of {size}, and gives up" in line for line in found["told"]] == [True]


def test_a_killed_rank_is_named_by_all_others(cases: Cases, size: int) -> None:
    killed = {name: found for name, found in cases.items() if name.startswith("killed ")}
    assert len(killed) == size
    for name, found in killed.items():
        victim = int(name.split()[2])
        assert sorted(found) == [rank for rank in range(size) if rank != victim], name
        for one in found.values():
            # Who was given its part of the call before, finds out at the next one.
            assert one["lost"]["class"] == "PeerLost" or name == "killed broadcast 2 2", name
            assert (one["later"]["class"], one["later"]["ranks"]) == ("PeerLost", [victim]), name
            assert f"rank {victim} of {size} died" in one["later"]["message"], name
