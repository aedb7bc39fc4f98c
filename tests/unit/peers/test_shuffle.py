"""Shuffle: what each rank is told of its rows is what one list of all ranks' rows says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry.errors import InvalidModel, UnsupportedFormat
from pulse_registry.peers import Attempt, LocalGroup, LocalPeers, run_ranks
from pulse_registry.peers.shuffle import holders, shuffle
from tests.support.waiting import NEVER_S


def on_ranks(life: Any, size: int) -> list[Any]:
    futures = run_ranks(life, LocalGroup(size, timeout_s=NEVER_S))
    return [future.exception() or future.result() for future in futures]


@given(
    held=st.lists(st.lists(st.integers(0, 9), max_size=8, unique=True), min_size=1, max_size=5),
    near=st.booleans(),
)
@settings(max_examples=40)
def test_each_holder_is_told_how_many_there_are_and_which_one_it_is(held: list[list[int]], near: bool) -> None:
    def key(box: int) -> bytes:  # keys that have one half in common are others
        return b"".join(half.to_bytes(8, "little") for half in (box // 5 if near else box, box * 5))

    def life(peers: LocalPeers) -> list[tuple[int, int]]:
        return holders(peers, [key(box) for box in held[peers.rank]], Attempt(peers), "boxes")

    every = [[rank for rank, boxes in enumerate(held) if box in boxes] for box in range(10)]
    expected = [[(every[box].index(rank), len(every[box])) for box in boxes] for rank, boxes in enumerate(held)]
    assert on_ranks(life, len(held)) == expected


def test_a_rank_that_failed_before_leaves_nobody_waiting_and_all_raise_its_error() -> None:
    def life(peers: LocalPeers) -> None:
        attempt = Attempt(peers)
        if peers.rank == 1:
            attempt.failure = InvalidModel("no such box")
        rows = np.arange(6, dtype=np.uint64).reshape(-1, 1)
        shuffle(peers, rows, lambda ranks, rows: ranks.astype(np.uint64), attempt, "boxes")
        attempt.agree("boxes")

    assert [(type(error), str(error)) for error in on_ranks(life, 3)] == [(InvalidModel, "rank 1: no such box")] * 3


def test_rows_of_another_width_are_told_on_all_ranks() -> None:
    def life(peers: LocalPeers) -> None:
        attempt = Attempt(peers)
        rows = np.zeros((1, 2 + peers.rank), np.uint64)
        shuffle(peers, rows, lambda ranks, rows: ranks.astype(np.uint64), attempt, "boxes")
        attempt.agree("boxes")

    for error in on_ranks(life, 2):
        assert isinstance(error, UnsupportedFormat)
        assert "have all ranks run the same release" in str(error)


@pytest.mark.parametrize("ranks", [1, 4])
def test_no_rows_have_no_answers(ranks: int) -> None:
    assert on_ranks(lambda peers: holders(peers, [], Attempt(peers), "boxes"), ranks) == [[]] * ranks
