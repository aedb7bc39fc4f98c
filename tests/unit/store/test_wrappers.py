from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from pulse_registry.errors import AlreadyExists, InvalidArgument, NotFound, StoreUnavailable
from pulse_registry.store import MemoryStore, WrapperStore
from pulse_registry.testing import CountingStore, Fault, FaultStore, LatencyStore
from tests.support.clock import Clock

_names = (f"test-wrappers-{number}" for number in itertools.count())


def memory() -> MemoryStore:
    return MemoryStore(next(_names))


# counting


def test_the_ledger_holds_every_call_and_the_bytes_of_those_that_succeed() -> None:
    store = CountingStore(memory())
    store.put("a", [b"12", b"345"])
    with pytest.raises(AlreadyExists):
        store.put("a", b"1234567", if_absent=True)
    store.get("a")
    store.get("a", (1, 3))
    with pytest.raises(NotFound):
        store.get("b")
    store.exists("a")
    store.size("a")
    assert [*store.list("")] == ["a"]
    assert [*store.folders("b")] == []
    store.delete("a")
    assert store.calls == {"put": 2, "get": 3, "exists": 1, "size": 1, "list": 2, "delete": 1}
    assert (store.bytes_read, store.bytes_written) == (7, 5)
    assert store.ledger == [
        ("put", "a"),
        ("put", "a"),
        ("get", "a"),
        ("get", "a"),
        ("get", "b"),
        ("exists", "a"),
        ("size", "a"),
        ("list", ""),
        ("list", "b"),
        ("delete", "a"),
    ]
    store.reset()
    assert (store.calls, store.bytes_read, store.bytes_written, store.ledger) == ({}, 0, 0, [])


# faults


def test_a_fault_before_the_call_leaves_the_store_as_it_was() -> None:
    below = memory()
    store = FaultStore(below, [Fault("fail_before", verb="put", nth=2)])
    store.put("a", b"")
    with pytest.raises(StoreUnavailable, match="put of 'b'"):
        store.put("b", b"")
    store.put("c", b"")
    assert [*below.list("")] == ["a", "c"]
    assert store.fired == [("fail_before", "put", "b")]


def test_a_fault_after_the_call_loses_only_the_answer() -> None:
    below = memory()
    store = FaultStore(below, [Fault("fail_after", nth=1)])
    with pytest.raises(StoreUnavailable):
        store.put("a", b"data")
    assert below.get("a") == b"data"


@pytest.mark.parametrize("verb", ["get", "exists", "size", "delete"])
def test_every_verb_can_lose_its_answer(verb: str) -> None:
    below = memory()
    below.put("a", b"data")
    store = FaultStore(below, [Fault("fail_after")])
    with pytest.raises(StoreUnavailable):
        getattr(store, verb)("a")
    assert below.exists("a") == (verb != "delete")


def test_a_fault_can_pick_its_calls_by_predicate_and_raise_any_error() -> None:
    store = FaultStore(
        memory(),
        [
            Fault(
                "fail_before",
                matches=lambda verb, key: key.startswith("log/"),
                error=lambda verb, key: KeyboardInterrupt(key),
            )
        ],
    )
    store.put("objects/1", b"")
    with pytest.raises(KeyboardInterrupt, match="log/1"):
        store.put("log/1", b"")


def test_flipped_bits_and_cuts_change_what_get_returns_and_nothing_else() -> None:
    below = memory()
    data = bytes(1000)
    below.put("a", data)
    flipped = FaultStore(below, [Fault("flip_bit")], seed=1).get("a")
    assert len(flipped) == 1000
    assert sum(byte.bit_count() for byte in flipped) == 1
    cut = FaultStore(below, [Fault("truncate")], seed=1).get("a", (10, 900))
    assert len(cut) < 890
    assert below.get("a") == data
    assert FaultStore(below, [Fault("flip_bit"), Fault("truncate")]).size("a") == 1000


def test_an_empty_object_can_not_be_changed() -> None:
    below = memory()
    below.put("a", b"")
    assert FaultStore(below, [Fault("flip_bit"), Fault("truncate")]).get("a") == b""


def test_the_same_seed_fails_in_the_same_way_and_another_differs() -> None:
    def history(seed: int) -> list[tuple[object, ...]]:
        below = memory()
        below.put("a", bytes(100))
        faults = [Fault("fail_before", probability=0.3), Fault("flip_bit", probability=0.5)]
        store = FaultStore(below, faults, seed)
        seen: list[tuple[object, ...]] = []
        for _ in range(50):
            try:
                seen.append(("read", store.get("a")))
            except StoreUnavailable as error:
                seen.append(("failed", str(error)))
        return [*seen, *store.fired]

    assert history(1) == history(1)
    assert history(1) != history(2)


def test_a_listing_that_fails_breaks_off_after_keys_in_order() -> None:
    below = memory()
    keys = [f"{number:02d}" for number in range(20)]
    for key in keys:
        below.put(key, b"")
    seen: list[str] = []
    with pytest.raises(StoreUnavailable):
        seen.extend(FaultStore(below, [Fault("fail_after", verb="list")], seed=1).list(""))
    assert seen == keys[: len(seen)]
    assert len(seen) < 20


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fault("flip_bit", verb="put"),
        lambda: Fault("fail_before", nth=0),
        lambda: Fault("fail_before", times=0),
        lambda: Fault("fail_before", probability=1.5),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(make: Callable[[], Fault]) -> None:
    with pytest.raises(InvalidArgument):
        make()


# what is handed on


def test_folders_are_one_request_below_a_wrapper() -> None:
    below = CountingStore(memory())
    for number in range(9):
        below.put(f"{number}/x", b"")
    below.reset()
    assert len([*WrapperStore(below).folders("")]) == 9
    assert below.calls == {"list": 1}


def test_a_wrapper_that_hides_keys_hides_their_folders() -> None:
    class Hiding(WrapperStore):
        def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
            return (key for key in super().list(prefix, after) if not key.startswith("secret/"))

    below = memory()
    for key in ("a/x", "secret/x", "z/x"):
        below.put(key, b"")
    assert [*Hiding(below).folders("")] == ["a/", "z/"]


# latency


def test_every_call_waits_for_the_latency() -> None:
    clock = Clock()
    store = LatencyStore(memory(), latency_s=0.25, clock=clock, sleep=clock.sleep)
    store.put("a", b"data")
    store.get("a")
    store.exists("a")
    store.size("a")
    assert [*store.list("")] == ["a"]
    assert [*store.folders("")] == []
    store.delete("a")
    assert clock.pauses == [0.25] * 7


def test_bytes_take_the_time_that_the_bandwidth_gives() -> None:
    clock = Clock()
    store = LatencyStore(memory(), latency_s=1.0, bytes_per_s=100.0, clock=clock, sleep=clock.sleep)
    store.put("a", [bytes(150), bytes(50)])
    assert clock.now == pytest.approx(3.0)
    store.get("a", (0, 50))
    assert clock.now == pytest.approx(4.5)


def test_transfers_at_the_same_time_share_the_bandwidth() -> None:
    pauses: list[float] = []
    store = LatencyStore(memory(), latency_s=0.0, bytes_per_s=100.0, clock=lambda: 5.0, sleep=pauses.append)
    store.put("a", bytes(100))
    store.put("b", bytes(100))
    store.get("a")
    assert [pause for pause in pauses if pause] == [1.0, 2.0, 1.0]


@pytest.mark.parametrize(("latency_s", "bytes_per_s"), [(-1.0, None), (0.0, 0.0)])
def test_a_link_that_can_not_be_is_refused(latency_s: float, bytes_per_s: float | None) -> None:
    with pytest.raises(InvalidArgument):
        LatencyStore(memory(), latency_s=latency_s, bytes_per_s=bytes_per_s)
