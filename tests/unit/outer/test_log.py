"""Members append to one log: each record once, whatever answers are lost, and all read the same."""

from __future__ import annotations

import uuid
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import CorruptObject, StoreUnavailable, UnsupportedFormat, Untrusted
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.state import OuterState
from pulse_registry.store import MemoryStore, Store
from pulse_registry.testing import CountingStore, Fault, FaultStore
from pulse_schemas.outer import JoinRecord, OuterRecord, Rates, StartRecord, unseal_outer_record
from pulse_schemas.outer_snapshot import OuterSnapshot

RATES = Rates(inner_steps=8, rate=0.7, momentum=0.9)


def empty() -> MemoryStore:
    return MemoryStore(uuid.uuid4().hex)


def start(state: OuterState, common: dict[str, Any]) -> OuterRecord | None:
    if state.start is not None:
        return None
    return StartRecord(
        **common, version=0, layout="0" * 64, digest="0" * 32, rates=RATES, gain=7.0, values="levels",
        exponent=-20, quorum=1, patience=2, weighting="equal",
    )  # fmt: skip


def join(member: str) -> Any:
    return lambda _, common: JoinRecord(**common, member=member)


def started(store: Store) -> OuterLog:
    log = OuterLog(store, "run")
    assert isinstance(log.append(start), StartRecord)
    return log


def test_what_is_appended_is_read_by_others_and_lies_below_a_folder_of_its_own() -> None:
    store = empty()
    mine, other = started(store), OuterLog(store, "run")
    assert other.append(start) is None  # it has begun
    assert mine.append(join("a")) is not None
    assert other.refresh() == mine.state
    assert list(mine.state.members) == ["a"]
    assert [*store.list("")] == [f"outer/log/{seq:012d}.json" for seq in range(2)]


def test_two_that_append_at_once_follow_each_other() -> None:
    store = empty()
    one, two = started(store), OuterLog(store, "run")
    two.refresh()
    one.append(join("a"))
    record = two.append(join("b"))
    assert record is not None
    assert record.seq == 2
    assert one.refresh() == two.state


@pytest.mark.parametrize("action", ["fail_before", "fail_after"])
def test_an_append_without_an_answer_is_found_or_made_again_once(action: Any) -> None:
    store = empty()
    started(store)
    log = OuterLog(FaultStore(store, [Fault(action, "put", times=1)]), "run")
    with pytest.raises(StoreUnavailable):
        log.append(join("a"), "a" * 32)
    record = log.append(join("a"), "a" * 32)
    assert record is not None
    assert (record.seq, record.write_id) == (1, "a" * 32)
    assert OuterLog(store, "run").refresh() == log.state
    assert log.state.seq == 1


def test_an_append_without_an_answer_whose_number_others_took_goes_behind_theirs() -> None:
    store = empty()
    other = started(store)
    log = OuterLog(FaultStore(store, [Fault("fail_before", "put", times=1)]), "run")
    with pytest.raises(StoreUnavailable):
        log.append(join("a"), "a" * 32)
    other.append(join("b"))
    record = log.append(join("a"), "a" * 32)
    assert record is not None
    assert record.seq == 2
    assert list(other.refresh().members) == ["b", "a"]


@given(
    turns=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["fail_before", "fail_after", None])), max_size=25),
)
def test_each_record_is_there_once_whatever_answers_are_lost(turns: list[tuple[int, str | None]]) -> None:
    store = empty()
    started(store)
    failing: list[str | None] = [None]
    faults = [
        Fault(action, "put", matches=lambda _verb, _key, action=action: failing[0] == action)  # type: ignore[misc]
        for action in ("fail_before", "fail_after")
    ]
    logs, wanted, done = [OuterLog(FaultStore(store, faults), "run") for _ in range(3)], {}, []
    for number, (who, failure) in enumerate(turns):
        write_id = wanted.setdefault(who, f"{number + 1:032x}")
        failing[0] = failure
        try:
            record = logs[who].append(join(f"m{who}"), write_id)
        except StoreUnavailable:
            continue
        assert record is not None
        assert record.write_id == write_id
        done.append(wanted.pop(who))
    failing[0] = None
    for who, write_id in wanted.items():
        logs[who].append(join(f"m{who}"), write_id)
        done.append(write_id)
    plain = OuterLog(store, "run")
    plain.refresh()
    written = []
    for seq in range(1, plain.state.seq + 1):
        sealed = store.get(f"outer/log/{seq:012d}.json", max_bytes=10_000)
        written.append(unseal_outer_record(sealed).write_id)
    assert sorted(written) == sorted(done)
    assert all(log.refresh() == plain.state for log in logs)


def test_damaged_records_and_later_formats_are_told() -> None:
    store = empty()
    started(store)
    key = "outer/log/000000000000.json"
    sealed = store.get(key, max_bytes=10_000)
    store.put(key, sealed.replace(b'"gain":7.0', b'"gain":8.0'))
    with pytest.raises(CorruptObject, match=key):
        OuterLog(store, "run").refresh()
    from pulse_schemas import Sealed, open_sealed

    later = Sealed(open_sealed(sealed).body.replace(b"pulse-outer/1", b"pulse-outer/9")).to_bytes()
    store.put(key, later)
    with pytest.raises(UnsupportedFormat):
        OuterLog(store, "run").refresh()


def long(store: Store, records: int) -> OuterLog:
    """Let one member append so many records."""
    log = started(store)
    while log.state.seq < records - 1:
        log.append(join("a"))
    return log


def test_a_long_log_is_opened_at_its_snapshot() -> None:
    store = empty()
    written = long(store, 150)
    counting = CountingStore(store)
    opened = OuterLog(counting, "run")
    assert opened.refresh() == written.state
    assert counting.calls["get"] == 1 + 3 + 150 - 128 + 1  # hint, snapshot and two records, the tail, and one more
    assert counting.calls["list"] == 0
    assert OuterLog(store, "run", whole=True).refresh().seq == 149


@pytest.mark.parametrize("what", ["snapshot", "hint", "record"])
def test_a_snapshot_that_is_damaged_or_of_another_log_is_not_believed(what: str) -> None:
    store = empty()
    written = long(store, 150)
    for seq in (63, 127):
        key = f"outer/log/snapshots/{seq:012d}.json"
        snapshot = OuterSnapshot.unseal(store.get(key, max_bytes=1 << 20))
        match what:
            case "snapshot":
                store.put(key, store.get(key, max_bytes=1 << 20).replace(b'"seq":', b'"sec":'))
            case "hint":
                store.put("outer/head", b"{}")
            case "record":
                store.put(key, snapshot.model_copy(update={"last": "0" * 64}).seal())
    assert OuterLog(store, "run").refresh() == written.state


def test_a_long_log_without_snapshots_is_read_many_records_at_a_time() -> None:
    store = empty()
    written = long(store, 60)
    counting, pools = CountingStore(store), list[int]()

    def threads(count: int, name: str) -> Executor:
        pools.append(count)
        return ThreadPoolExecutor(count, name)

    opened = OuterLog(counting, "run", threads=threads)
    assert opened.refresh() == written.state
    assert pools == [16]
    opened.refresh()
    assert pools == [16]  # once it is open, records come one by one
    assert counting.calls["get"] <= 2 + 16 + 48 + 1  # record 0, the hint, one by one, three times sixteen, another look
    assert counting.calls["list"] == 1


def test_a_snapshot_that_can_not_be_written_costs_nothing() -> None:
    store = empty()
    fault = Fault("fail_before", "put", matches=lambda _, key: "snapshots" in key)
    log = long(FaultStore(store, [fault]), 70)
    assert not [*store.list("outer/log/snapshots/")]
    assert OuterLog(store, "run").refresh() == log.state


def test_nobody_appends_where_a_record_is_missing() -> None:
    store = empty()
    log = long(store, 8)
    gone = "outer/log/000000000005.json"
    sealed = store.get(gone, max_bytes=10_000)
    store.delete(gone)
    other = OuterLog(store, "run")
    with pytest.raises(CorruptObject, match="record 5 is missing"):
        other.append(join("b"))
    assert [*store.list("outer/log/")][-1] == "outer/log/000000000007.json"
    store.put(gone, sealed)
    record = other.append(join("b"))
    assert record is not None
    assert record.seq == 8
    assert log.refresh() == other.state


def test_past_the_end_is_looked_once_and_what_others_append_meanwhile_is_no_gap() -> None:
    store = empty()
    elder = long(store, 3)

    class Busy(CountingStore):
        def list(self, prefix: str, after: str | None = None) -> Any:
            if self.calls["list"] < 2:
                elder.append(join("c"))  # between the look at the next record, and the listing
            return super().list(prefix, after)

    counting = Busy(store)
    counting.calls["list"] = 0
    log = OuterLog(counting, "run")
    log.refresh()
    before = counting.calls["list"]
    log.append(join("b"))
    log.append(join("d"))
    assert log.refresh() == elder.refresh()
    assert counting.calls["list"] <= before + 3


class Believer:
    """A guard that believes all records, and snapshots only if it is told to."""

    def __init__(self, snapshots: bool) -> None:
        self.snapshots, self.judged = snapshots, 0

    def begin(self, first: object = None) -> None:
        return None

    def check_snapshot(self, _: bytes) -> None:
        self.judged += 1
        if not self.snapshots:
            raise Untrusted("a snapshot is not signed")

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


def test_a_snapshot_counts_only_if_the_guard_believes_it() -> None:
    store = empty()
    written = long(store, 150)
    for believed in (True, False):
        guard: Any = Believer(believed)
        counting = CountingStore(store)
        log = OuterLog(counting, "run", guard=guard)
        assert log.refresh() == written.state
        assert guard.judged == (1 if believed else 2)
        assert (counting.calls["get"] > 150) is not believed
    snapshots = [*store.list("outer/log/snapshots/")]
    doubtful: Any = Believer(False)
    log = OuterLog(store, "run", guard=doubtful)
    while log.state.seq < 200:
        log.append(join("b"))
    assert [*store.list("outer/log/snapshots/")] == snapshots  # one that readers refuse would be in their way
