"""The shared log: the coordinator appends, and what it hands over is checked as if each rank had read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulse_registry.errors import Conflict, CorruptObject, InvalidModel, Untrusted
from pulse_registry.log import LogReader, LogWriter
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers
from pulse_registry.peers.peers import Bytes, Peers
from pulse_registry.peers.vote import Attempt
from pulse_registry.push.shared_log import SharedLog
from pulse_registry.signing import SigningKey, Trust
from pulse_registry.signing.guard import PinGuard
from pulse_registry.testing import CountingStore
from tests.support.ranks import MortalPeers, alike, outcomes
from tests.support.records import RUN, DictStore, clock, draft, ids, writer

RANKS = 3


def log_of(peers: Peers, store: Any, *, signer: SigningKey | None = None, trust: Trust | None = None) -> SharedLog:
    """Return one rank's end of a run's log."""
    guard = None if trust is None else PinGuard(trust, "dict://", RUN)
    reader = LogReader(store, RUN, guard)
    return SharedLog(LogWriter(store, RUN, reader, clock(), ids(peers.rank), "test", signer=signer), peers)


def commit(log: SharedLog, peers: Peers, version: int, write_id: str | None = None) -> tuple[int, str | None]:
    """Commit a version; return where this rank's reader then is in the log."""
    made = draft(version)
    record = log.append(Attempt(peers), lambda: log.writer.commit(made), write_id or made.write_id)
    state = log.reader.seen
    assert state is not None
    assert state.version(version).seq == record.seq
    return state.seq, state.last


def on_ranks(work: Callable[[LocalPeers], Any]) -> list[Any]:
    return outcomes(work, LocalGroup(RANKS))


def test_ranks_know_what_the_coordinator_wrote_without_a_request() -> None:
    """It fails if a rank reads the log, or if records of others are read by each rank."""
    store = DictStore()
    stores = [CountingStore(store) for _ in range(RANKS)]

    def work(peers: LocalPeers) -> Any:
        log = log_of(peers, stores[peers.rank])
        assert log.begin(lambda state: None) == -1
        stores[peers.rank].reset()
        found = [commit(log, peers, 0), commit(log, peers, 1)]
        if peers.rank == 0:
            writer(store).tag("by-another", 1)
            log.reader.refresh()
        return [*found, commit(log, peers, 2)]

    first, *others = on_ranks(work)
    assert others == [first] * (RANKS - 1)
    state = LogReader(store, RUN).refresh()
    assert first[-1] == (state.seq, state.last)
    assert state.tags == {"by-another": 1}
    assert [one.ledger for one in stores[1:]] == [[]] * (RANKS - 1)


def test_a_rank_that_is_further_behind_than_is_handed_over_reads_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulse_registry.push.shared_log._MOST_HANDED", 1)
    store = DictStore()

    def work(peers: LocalPeers) -> Any:
        log = log_of(peers, store)
        log.begin(lambda state: None)
        commit(log, peers, 0)
        if peers.rank == 0:
            other = writer(store)
            for name in ("a", "b", "c"):
                other.tag(name, 0)
        return commit(log, peers, 1)

    found = on_ranks(work)
    assert found == [found[0]] * RANKS
    assert LogReader(store, RUN).refresh().tags == {"a": 0, "b": 0, "c": 0}


def test_a_term_is_not_begun_where_the_coordinator_finds_something_wrong() -> None:
    store = DictStore()

    def refuse(_: Any) -> None:
        raise InvalidModel("another layout")

    assert alike(on_ranks(lambda peers: log_of(peers, store).begin(refuse)), InvalidModel) == "rank 0: another layout"
    assert not store.objects


def test_a_record_by_a_key_that_a_rank_does_not_pin_is_believed_by_none(tmp_path: Any) -> None:
    """It fails if what was handed over is folded without its signature."""
    trainer, stranger, store = SigningKey.generate(), SigningKey.generate(), DictStore()

    def work(peers: LocalPeers) -> Any:
        trusting = peers.rank == 2
        trust = Trust([trainer.public, f"{stranger.public}=epoch"], state_dir=tmp_path) if trusting else None
        log = log_of(peers, store, signer=stranger, trust=trust)
        log.begin(lambda state: None)
        commit(log, peers, 0)

    assert f"{stranger.public}, which may not sign a commit" in alike(on_ranks(work), Untrusted)


def test_signed_records_are_handed_over_as_the_log_holds_them(tmp_path: Any) -> None:
    trainer, store = SigningKey.generate(), DictStore()

    def work(peers: LocalPeers) -> Any:
        trust = Trust([trainer.public], state_dir=tmp_path / str(peers.rank))
        log = log_of(peers, store, signer=trainer, trust=trust)
        log.begin(lambda state: None)
        return commit(log, peers, 0), commit(log, peers, 1)

    found = on_ranks(work)
    assert found == [found[0]] * RANKS


class Wire(MortalPeers):
    """A wire on which what the coordinator says of one name is changed."""

    def __init__(self, peers: LocalPeers, change: Callable[[bytes], bytes]) -> None:
        super().__init__(peers)
        self._change = change

    def broadcast(self, data: Bytes | None, what: str = "") -> bytes:
        said = super().broadcast(data, what)
        return self._change(said) if what == "record" and self.rank == 1 else said


def test_a_record_that_was_damaged_on_its_way_is_refused() -> None:
    store = DictStore()

    def work(peers: LocalPeers) -> Any:
        log = log_of(Wire(peers, lambda said: said.replace(b'"step":0', b'"step":1')), store)
        log.begin(lambda state: None)
        commit(log, peers, 0)

    assert "the seal does not fit" in alike(on_ranks(work), CorruptObject)


def test_a_record_of_another_chain_is_refused() -> None:
    """It fails if what was handed over is folded whatever it follows."""
    other, store = DictStore(), DictStore()
    elsewhere = writer(other, 7)
    elsewhere.begin()
    elsewhere.commit(draft(0))
    forged = other.objects["log/000000000001.json"]

    def work(peers: LocalPeers) -> Any:
        log = log_of(Wire(peers, lambda said: forged), store)
        log.begin(lambda state: None)
        commit(log, peers, 0)

    assert "it follows a record with hash" in alike(on_ranks(work), CorruptObject)


def test_a_record_of_another_write_is_refused() -> None:
    store = DictStore()

    def work(peers: LocalPeers) -> Any:
        log = log_of(peers, store)
        log.begin(lambda state: None)
        commit(log, peers, 0, "f" * 32)

    assert f"not the one of write {'f' * 32}" in alike(on_ranks(work), Conflict)
