"""Transfers: within memory and rate, checked to the last byte before it is let go, whatever the object's size."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import CorruptObject
from pulse_registry.mirror import Lanes, Rate
from pulse_registry.mirror import transfer as transfer_module
from pulse_registry.mirror.transfer import Damaged, Transfer
from pulse_schemas import ObjectRef
from tests.support.records import DictStore


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_module, "PIECE", 7)


def stored(data: bytes) -> tuple[DictStore, ObjectRef]:
    store = DictStore()
    store.put("objects/x", data)
    return store, ObjectRef(key="objects/x", size=len(data), blake3=blake3(data).hexdigest())


@given(data=st.binary(max_size=100), flip=st.integers(0, 799))
def test_all_bytes_come_in_order_and_no_damaged_one_is_ever_the_last(data: bytes, flip: int) -> None:
    store, item = stored(data)
    with ThreadPoolExecutor(3) as readers:
        transfer = Transfer(store, item, readers, Rate(None))
        assert b"".join(transfer) == b"".join(transfer) == data
        if not data:
            return
        at = flip % (8 * len(data))
        wrong = bytearray(data)
        wrong[at // 8] ^= 1 << at % 8
        store.objects["objects/x"] = bytes(wrong)
        let_go = bytearray()
        with pytest.raises(Damaged):
            let_go.extend(byte for part in Transfer(store, item, readers, Rate(None)) for byte in part)
        assert len(let_go) < len(data)
        store.objects["objects/x"] = data[:-1]
        with pytest.raises(CorruptObject):
            Transfer(store, item, readers, Rate(None)).check()


def test_few_pieces_are_under_way_at_a_time() -> None:
    data = np.random.default_rng(0).bytes(7 * 40)
    store, item = stored(data)
    seen, lock = [0, 0], threading.Lock()

    class Counting(DictStore):
        def get(self, key, byte_range=None, **bound):
            with lock:
                seen[0] += 1
            return store.get(key, byte_range, **bound)

    with ThreadPoolExecutor(16) as readers:
        for number, _ in enumerate(Transfer(Counting(), item, readers, Rate(None)), 1):
            assert seen[0] - number <= transfer_module.AHEAD


def test_a_rate_is_kept_over_all_threads() -> None:
    now, slept = [0.0], list[float]()
    rate = Rate(100.0, monotonic=lambda: now[0], sleep=slept.append)
    for _ in range(3):
        rate.take(50)
    assert slept == [0.5, 1.0]
    now[0] = 10.0
    rate.take(1000)
    rate.take(1)
    assert slept == [0.5, 1.0, 10.0]


def test_memory_is_given_to_as_many_as_it_is_enough_for() -> None:
    lanes = Lanes()
    inside, most, lock = [0], [0], threading.Lock()
    barrier = threading.Barrier(2)

    def work() -> None:
        with lanes.memory(80 << 20):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            barrier.wait(60)
            with lock:
                inside[0] -= 1

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work) for _ in range(8)]:
            future.result()
    with lanes.memory(10 << 30):
        pass  # more than there is: all of it
    lanes.close()
    assert most == [2]
