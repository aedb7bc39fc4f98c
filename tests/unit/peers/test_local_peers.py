"""Ranks as threads: every collective against a plain reference, and what the others hear of a rank that is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event, Semaphore
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry.errors import InvalidArgument, PeerLost, UnsupportedFormat
from pulse_registry.peers import LocalGroup, LocalPeers, Peers, run_ranks, sum_lanes
from tests.support.waiting import HANG_S, NEVER_S

Life = Callable[[LocalPeers], Any]


def ranks(*lives: Life, **options: Any) -> list[Any]:
    """Let ranks live, and return what each returned or raised."""
    options = {"timeout_s": NEVER_S} | options
    futures = run_ranks(lambda peers: lives[peers.rank](peers), LocalGroup(len(lives), **options))
    return [future.exception() or future.result() for future in futures]


def alike(size: int, life: Life, **options: Any) -> list[Any]:
    return ranks(*[life] * size, **options)


rounds = st.integers(1, 5).flatmap(
    lambda size: st.tuples(
        st.just(size),
        st.lists(
            st.lists(st.lists(st.binary(max_size=40), min_size=size, max_size=size), min_size=size, max_size=size)
        ),
    )
)


@settings(max_examples=40, deadline=None)
@given(rounds)
def test_every_collective_gives_what_the_ranks_gave(case: tuple[int, list[list[list[bytes]]]]) -> None:
    size, tables = case

    def life(peers: Peers) -> list[Any]:
        return [
            (
                [bytes(part) for part in peers.exchange(table[peers.rank], "cells")],
                peers.all_gather(table[peers.rank][0]),
                peers.gather(table[peers.rank][0]),
                peers.broadcast(table[0][0] if peers.rank == 0 else None),
            )
            for table in tables
        ]

    for rank, given_ in enumerate(alike(size, life)):
        assert given_ == [
            (
                [row[rank] for row in table],
                [row[0] for row in table],
                [row[0] for row in table] if rank == 0 else None,
                table[0][0],
            )
            for table in tables
        ]


def test_what_was_sent_does_not_change_with_the_buffer_that_it_came_from() -> None:
    def life(peers: Peers) -> list[bytes]:
        buffer = bytearray(b"old!" * 2)
        given_ = peers.exchange([memoryview(buffer).cast("I")] * 2)
        buffer[:] = bytes(8)
        peers.all_gather(b"")
        assert all(part.readonly for part in given_)
        return [bytes(part) for part in given_]

    assert alike(2, life) == [[b"old!old!"] * 2] * 2


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), min_size=1, max_size=4))
def test_lanes_are_added_up_modulo_two_to_the_64(lanes: list[tuple[int, int]]) -> None:
    expected = tuple(sum(column) % 2**64 for column in zip(*lanes, strict=True))
    assert alike(len(lanes), lambda peers: sum_lanes(peers, lanes[peers.rank])) == [expected] * len(lanes)


def test_other_numbers_of_lanes_are_refused() -> None:
    results = alike(2, lambda peers: sum_lanes(peers, [1] * (peers.rank + 1), "digest"))
    assert [type(result) for result in results] == [UnsupportedFormat] * 2


OTHER_CALLS: list[tuple[Callable[[Peers], object], str]] = [
    (lambda peers: peers.gather(b""), "ranks 0, 2 made all_gather, call 2; rank 1 made gather, call 2"),
    (lambda peers: peers.all_gather(b"", "boxes"), "rank 1 made all_gather 'boxes', call 2"),
    (lambda peers: peers.exchange([b""] * 2), "rank 1 made an impossible call 2: exchange has 2 parts for 3 ranks"),
]


@pytest.mark.parametrize(("other", "said"), OTHER_CALLS)
def test_another_call_is_an_error_on_all_ranks_and_the_next_call_goes_on(
    other: Callable[[Peers], object], said: str
) -> None:
    def life(peers: Peers) -> tuple[str, list[bytes]]:
        peers.all_gather(b"1")
        with pytest.raises(InvalidArgument) as refused:
            other(peers) if peers.rank == 1 else peers.all_gather(b"2")
        return str(refused.value), peers.all_gather(b"3")

    results = alike(3, life)
    assert results == [results[0]] * 3
    assert said in results[0][0]
    assert results[0][1] == [b"3"] * 3


def test_a_broadcast_of_nothing_is_an_error_on_all_ranks() -> None:
    results = alike(3, lambda peers: peers.broadcast(None, "layout"))
    assert [type(result) for result in results] == [InvalidArgument] * 3
    assert "rank 0 made an impossible call 1: broadcast has nothing" in str(results[2])


@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize("dies", [True, False])
def test_a_rank_that_dies_or_leaves_is_named_by_all_others(calls: int, dies: bool) -> None:
    def life(peers: Peers) -> str:
        for _ in range(calls):
            peers.all_gather(b"")
        if peers.rank == 2:
            if dies:
                raise ZeroDivisionError
            return "left"
        with pytest.raises(PeerLost) as lost:
            peers.gather(b"", "votes")
        with pytest.raises(PeerLost, match=r"can't be used since a rank was lost.*rank 2 of 4") as later:
            peers.all_gather(b"")
        assert lost.value.ranks == later.value.ranks == (2,)
        return str(lost.value)

    results = alike(4, life)
    assert isinstance(results[2], ZeroDivisionError) if dies else results[2] == "left"
    assert results[0] == results[1] == results[3]
    assert (
        f"rank 2 of 4 died, or closed the registry, while this rank was at gather 'votes', call {calls + 1}"
        in results[0]
    )
    assert "open the registry again on all ranks" in results[0]


def test_a_call_that_all_ranks_made_succeeds_though_one_leaves_before_another_has_looked() -> None:
    here, left = Semaphore(0), Event()

    def looks_late(until: Callable[[], bool], seconds: float) -> bool:
        here.release()
        assert until() or left.wait(HANG_S)  # the last does not wait
        return until()

    def early(peers: Peers) -> list[bytes]:
        return peers.all_gather(b"early")

    def last(peers: Peers) -> list[bytes]:
        assert here.acquire(timeout=HANG_S)
        assert here.acquire(timeout=HANG_S)
        try:
            return peers.all_gather(b"last")
        finally:
            peers.close()
            left.set()

    assert ranks(early, last, early, wait=looks_late) == [[b"early", b"last", b"early"]] * 3


def test_a_silent_rank_is_told_of_after_a_minute_and_named_at_the_time_out() -> None:
    told: list[str] = []
    waited: list[float] = []
    over = Event()

    def passes(until: Callable[[], bool], seconds: float) -> bool:
        waited.append(seconds)
        return False

    def life(peers: Peers) -> str:
        if peers.rank == 1:
            assert over.wait(HANG_S)
        with pytest.raises(PeerLost) as lost:
            peers.broadcast(b"", "head")
        over.set()
        assert lost.value.ranks == (1,)
        return str(lost.value)

    results = alike(2, life, timeout_s=1800.0, wait=passes, tell=told.append)
    assert "rank 1 of 2 did not come to broadcast 'head', call 1 within 1800 s (rank 0 came)" in results[0]
    assert "has to be made on every rank" in results[0]
    assert results[1] == results[0]
    assert waited[:2] == [60.0, 1740.0]
    assert told[0] == "broadcast 'head', call 1 has waited 60 s for rank 1 of 2, and gives up after 1800 s"


def test_a_closed_rank_makes_no_calls() -> None:
    group = LocalGroup(1)
    peers = group.peers(0)
    assert peers.exchange([b"mine"]) == [b"mine"]
    peers.close()
    peers.close()
    with pytest.raises(InvalidArgument, match="closed"):
        peers.all_gather(b"")


def test_hundreds_of_ranks_talk() -> None:
    size = 128

    def life(peers: Peers) -> bool:
        sent: Sequence[bytes] = [bytes([peers.rank, to]) for to in range(peers.size)]
        given_ = peers.exchange(sent)
        return given_ == [bytes([rank, peers.rank]) for rank in range(size)] and len(peers.all_gather(b"")) == size

    assert alike(size, life) == [True] * size
