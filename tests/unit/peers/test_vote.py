"""The vote: all ranks return, or all raise the same error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry import errors
from pulse_registry.errors import (
    CorruptObject,
    Distrust,
    Fenced,
    InvalidModel,
    NotFound,
    PeerLost,
    PulseError,
    StoreUnavailable,
    UnsupportedFormat,
    Untrusted,
)
from pulse_registry.peers import Attempt, LocalGroup, LocalPeers, Peers, agree, run_ranks
from tests.support.waiting import NEVER_S

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PulseError)]


def raised(life: Callable[[LocalPeers], object], size: int = 3) -> list[Any]:
    """Return what each rank raised, or what it returned."""
    futures = run_ranks(life, LocalGroup(size, timeout_s=NEVER_S))
    return [future.exception() or future.result() for future in futures]


def facts(error: PulseError) -> dict[str, object]:
    return {"class": type(error), "message": str(error), "key": error.key} | vars(error)


def test_where_no_rank_failed_all_go_on() -> None:
    assert raised(lambda peers: agree(peers, None)) == [None] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_of_the_tree_is_raised_by_all_ranks(kind: type[PulseError]) -> None:
    def life(peers: Peers) -> None:
        error = kind("objects/x is damaged; restore it")
        error.key = "objects/x"
        agree(peers, error if peers.rank == 1 else None)

    results = raised(life)
    assert [type(result) for result in results] == [kind] * 3
    assert [facts(result) for result in results] == [facts(results[0])] * 3
    assert str(results[0]) == "rank 1: objects/x is damaged; restore it"
    assert results[2].key == "objects/x"


def test_what_errors_have_besides_travels() -> None:
    busy = StoreUnavailable("busy")
    busy.retry_after_s, busy.throttled, busy.lasting = 2.5, True, True
    for error in (busy, Untrusted("forked", Distrust.FORK), PeerLost("rank 7 died", [7])):
        expected = {**vars(error), "key": None}
        for result in raised(lambda peers, error=error: agree(peers, error if peers.rank == 2 else None)):  # type: ignore[misc]
            assert type(result) is type(error)
            assert expected.items() <= vars(result).items()


def test_of_several_errors_all_ranks_raise_the_lowest_ranks() -> None:
    failures = [None, Fenced("epoch 4 began"), NotFound("no layout"), CorruptObject("damaged")]
    results = raised(lambda peers: agree(peers, failures[peers.rank]), 4)
    assert [(type(result), str(result)) for result in results] == [(Fenced, "rank 1: epoch 4 began")] * 4


def test_an_error_that_is_none_of_ours_is_raised_where_it_came_up_and_told_to_the_others() -> None:
    defect = ZeroDivisionError("by \n zero")
    results = raised(lambda peers: agree(peers, defect if peers.rank == 1 else None))
    assert results[1] is defect
    assert type(results[0]) is type(results[2]) is PulseError
    assert str(results[0]) == str(results[2]) == "rank 1: it failed unexpectedly: ZeroDivisionError: by \\n zero"


def test_a_class_of_another_module_is_told_as_the_one_above_it() -> None:
    class Elsewhere(InvalidModel):
        pass

    results = raised(lambda peers: agree(peers, Elsewhere("tensor 'w'") if peers.rank == 0 else None))
    assert [type(result) for result in results] == [InvalidModel] * 3


@settings(max_examples=60, deadline=None)
@given(st.text(), st.none() | st.text(), st.integers(1, 3000))
def test_any_text_travels_in_bounds(message: str, key: str | None, times: int) -> None:
    def life(peers: Peers) -> None:
        error = CorruptObject(message * times)
        error.key = key and key * times
        agree(peers, error if peers.rank else None)

    for result in raised(life, 2):
        assert str(result).startswith("rank 1: ")
        assert str(result).isprintable()
        assert (result.key is None) == (key is None)
        assert len(str(result)) + len(result.key or "") < 12_000


HOSTILE = [
    b"x",
    b"\xff\xfe",
    b"[]",
    b'{"kind": "Fenced"}',
    b'{"kind": "Fenced", "message": 1}',
    b'{"kind": "Fenced", "message": "m", "more": 1}',
    b'{"kind": "Fenced", "message": "m", "ranks": [-1]}',
    b'{"kind": "Fenced", "message": "m", "retry_after_s": "soon"}',
    b'{"kind": "Fenced", "message": "' + b"m" * 20_000 + b'"}',
    b" " * 200_000,
    b"[" * 100_000,
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_what_no_rank_says_is_refused_by_all(data: bytes) -> None:
    def life(peers: Peers) -> None:
        if peers.rank == 0:
            peers.all_gather(data, "vote")
            raise UnsupportedFormat("rank 0 failed")
        agree(peers, None)

    results = raised(life)
    assert [type(result) for result in results] == [UnsupportedFormat] * 3
    assert all("rank 0 failed" in str(result) for result in results)


def test_a_class_that_this_release_does_not_know_is_an_error_all_the_same() -> None:
    def life(peers: Peers) -> None:
        if peers.rank:
            agree(peers, None)
        peers.all_gather(b'{"kind": "Melted", "message": "all of it"}', "vote")

    results = raised(life, 2)
    assert (type(results[1]), str(results[1])) == (PulseError, "rank 0: all of it")


def test_a_rank_that_failed_goes_on_taking_part_and_all_raise_at_the_vote() -> None:
    done: list[tuple[int, str]] = []

    def note(peers: Peers, what: str, fails: bool = False) -> bytes:
        if fails:
            raise CorruptObject(f"{what} failed")
        done.append((peers.rank, what))
        return what.encode()

    def life(peers: Peers) -> list[bytes]:
        attempt = Attempt(peers)
        part = attempt.run(lambda: note(peers, "split", fails=peers.rank == 1), b"")
        seen = [bytes(one) for one in peers.exchange([part] * peers.size)]
        attempt.run(lambda: note(peers, "code"), b"")
        with pytest.raises(CorruptObject, match="rank 1: split failed"):
            attempt.agree("code")
        attempt.agree("the next one")  # begins anew
        return seen

    assert raised(life) == [[b"split", b"", b"split"]] * 3
    assert sorted(done) == [(0, "code"), (0, "split"), (2, "code"), (2, "split")]


def test_who_lost_a_peer_does_not_vote() -> None:
    def life(peers: Peers) -> None:
        attempt = Attempt(peers)
        if peers.rank == 1:
            attempt.run(lambda: peers.all_gather(b""), [])

    group = LocalGroup(2, timeout_s=NEVER_S)
    assert isinstance(run_ranks(life, group)[1].exception(), PeerLost)


def test_the_cause_of_an_error_stays_on_the_rank_where_it_came_up() -> None:
    own = NotFound("gone")
    results = raised(lambda peers: agree(peers, own if peers.rank == 1 else None))
    assert [result.__cause__ for result in results] == [None, own, None]
