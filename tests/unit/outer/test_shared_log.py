"""The ranks of a member see one outer log: the coordinator asks the store, and all fold the same records."""

from __future__ import annotations

from typing import Any

import pytest

from pulse_registry.errors import Fenced, StoreUnavailable
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.shared_log import HeardLog, SharedOuterLog
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers, run_ranks
from pulse_registry.store import Store
from pulse_registry.testing import CountingStore, Fault, FaultStore
from tests.support.waiting import NEVER_S
from tests.unit.outer.test_log import empty, join, start, started

RANKS = 3


def on_ranks(stores: list[Any], life: Any) -> list[Any]:
    """Return what a life with a shared log gives on each rank."""

    def begun(peers: LocalPeers) -> Any:
        return life(SharedOuterLog(HeardLog(stores[peers.rank], "run"), peers), peers.rank)

    return [future.result() for future in run_ranks(begun, LocalGroup(len(stores), timeout_s=NEVER_S))]


@pytest.mark.parametrize("before", [0, 1, 70, 130])
def test_all_ranks_fold_what_the_coordinator_alone_reads(before: int) -> None:
    store, others = empty(), [CountingStore(empty()) for _ in range(RANKS - 1)]
    if before:
        elder = started(store)
        for number in range(1, before):
            elder.append(join(f"m{number % 5}"))
    plain = OuterLog(store, "run")

    def life(log: SharedOuterLog, rank: int) -> Any:
        log.refresh()
        log.append(start)
        if rank == 0:
            plain.append(join("other"))
        mine = log.append(join("mine"))
        assert mine is not None
        assert log.append(lambda *_: None) is None
        log.refresh()
        return mine, log.state

    found = on_ranks([store, *others], life)
    plain.refresh()
    assert {record.seq for record, _ in found} == {max(1, before) + 1}
    assert all(state == found[0][1] for _, state in found)
    assert found[0][1].members == plain.state.members
    assert (found[0][1].seq, found[0][1].last) == (plain.state.seq, plain.state.last)
    assert all(not other.calls for other in others)


def test_what_was_handed_over_is_kept_by_no_rank() -> None:
    store = empty()
    started(store)
    stores = [store, empty(), empty()]

    def begun(peers: LocalPeers) -> list[bytes]:
        heard = HeardLog(stores[peers.rank], "run")
        log = SharedOuterLog(heard, peers)
        for number in range(3):
            log.append(join(f"m{number}"))
        return heard.heard

    group = LocalGroup(len(stores), timeout_s=NEVER_S)
    assert [future.result() for future in run_ranks(begun, group)] == [[]] * RANKS


@pytest.mark.parametrize("action", ["fail_before", "fail_after"])
def test_what_fails_at_the_coordinator_is_raised_by_all_and_the_record_lands_once(action: Any) -> None:
    store = empty()
    started(store)
    failing = [True]
    faulty: Store = FaultStore(store, [Fault(action, "put", matches=lambda _verb, _key: failing[0])])

    def life(log: SharedOuterLog, rank: int) -> Any:
        with pytest.raises(StoreUnavailable):
            log.append(join("a"), "1" * 32)
        if rank == 0:
            failing[0] = False
        assert log.append(join("a"), "1" * 32) is not None
        return log.state

    states = on_ranks([faulty, empty(), empty()], life)
    plain = OuterLog(store, "run")
    plain.refresh()
    assert plain.state.seq == 1
    assert states == [states[0]] * RANKS
    assert (states[0].seq, states[0].last) == (1, plain.state.last)


def test_a_record_that_the_coordinator_refuses_to_make_is_refused_on_all_ranks() -> None:
    store = empty()
    started(store)

    def refuse(*_: Any) -> Any:
        raise Fenced("another process has joined")

    def life(log: SharedOuterLog, rank: int) -> int:
        with pytest.raises(Fenced, match="another process"):
            log.append(refuse)
        return log.refresh().seq

    assert on_ranks([store, empty(), empty()], life) == [0] * RANKS
