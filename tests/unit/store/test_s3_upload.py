from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.store import Stream
from pulse_registry.store.parts import MAX_PARTS, part_size, parts_of
from pulse_registry.store.s3.body import Parcel, crc32
from pulse_registry.store.s3.upload import Upload
from pulse_registry.store.watchdog import LowSpeedLimit, TransferWatchdog
from pulse_registry.store.wrappers.retry import RetryPolicy
from tests.support.waiting import HANG_S

MIB = 1 << 20


class Chunks(Stream):
    """Gives each chunk in the same buffer, as streams may."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks
        self.nbytes = sum(map(len, chunks))

    def __iter__(self) -> Iterator[memoryview]:
        buffer = bytearray(max(map(len, self.chunks), default=0))
        for chunk in self.chunks:
            buffer[: len(chunk)] = chunk
            yield memoryview(buffer)[: len(chunk)]


@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(1, 20), st.booleans())
def test_parts_hold_all_bytes_in_order_and_all_but_the_last_are_full(
    chunks: list[bytes], size: int, streamed: bool
) -> None:
    parts = [*parts_of(Chunks(chunks) if streamed else chunks, size)]  # all are kept, so that none may be reused
    sizes = [sum(view.nbytes for view in part) for part in parts]
    assert b"".join(b"".join(part) for part in parts) == b"".join(chunks)
    assert all(found == size for found in sizes[:-1])
    assert all(0 < found <= size for found in sizes)


def test_parts_grow_so_that_ten_thousand_are_enough() -> None:
    assert part_size(MAX_PARTS * 16 * MIB, 16 * MIB) == 16 * MIB
    assert part_size(MAX_PARTS * 16 * MIB + 1, 16 * MIB) == 17 * MIB
    assert part_size(5 << 40, 16 * MIB) * MAX_PARTS >= 5 << 40


class Client:
    """Takes parts as slowly as it can: one when no more are to come, or as many as may are under way."""

    def __init__(self, stream: Counted, threads: int) -> None:
        self.stream = stream
        self.full = threading.Barrier(threads)
        self.parts: dict[int, bytes] = {}

    def create_multipart_upload(self, **_: Any) -> dict[str, str]:
        return {"UploadId": "id"}

    def upload_part(self, *, PartNumber: int, Body: Parcel, **_: Any) -> dict[str, str]:  # noqa: N803
        self.full.wait(HANG_S)  # every thread has a part, and the stream goes on meanwhile
        data = b""
        while block := Body.read():
            data += block
        self.parts[PartNumber] = data
        self.stream.sent(len(data))
        return {"ETag": "etag"}

    def complete_multipart_upload(self, **_: Any) -> None:
        pass


class Counted(Stream):
    """Counts the bytes that were made and are not sent."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.most = 0
        self._made = self._sent = 0
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[bytes]:
        for at in range(0, self.nbytes, 8):
            with self._lock:
                self._made += 8
                self.most = max(self.most, self._made - self._sent)
            yield at.to_bytes(8, "big")

    def sent(self, nbytes: int) -> None:
        with self._lock:
            self._sent += nbytes


def test_no_more_parts_than_there_are_threads_and_one_are_in_memory() -> None:
    threads, part = 3, 64
    stream = Counted(threads * part * 10)
    client = Client(stream, threads)
    Upload(client, "bucket", "s3://bucket", part, threads, LowSpeedLimit(), RetryPolicy()).put(
        "key", stream, if_absent=False
    )
    assert threads * part <= stream.most <= (threads + 1) * part
    assert b"".join(client.parts[number] for number in sorted(client.parts)) == b"".join(stream)


def test_a_parcel_gives_all_bytes_in_blocks_and_again_from_its_start() -> None:
    views = [memoryview(bytes(range(200)) * 2000), memoryview(b"end")]
    parcel = Parcel(views, LowSpeedLimit(), "put of 'key'")
    whole = b"".join(views)
    for _ in range(2):
        assert parcel.tell() == 0
        assert b"".join(iter(parcel.read, b"")) == whole
        assert parcel.tell() == len(parcel) == len(whole)
        assert parcel.seek(0) == 0
    assert parcel.seek(0, 2) == len(whole)
    with pytest.raises(OSError, match="start"):
        parcel.seek(5)


def test_a_checksum_is_that_of_the_joined_buffers() -> None:
    assert crc32([memoryview(b"1234"), memoryview(b"56789")]) == "y/Q5Jg=="  # CRC-32's check value, 0xCBF43926


def test_a_transfer_must_keep_its_pace_in_each_window() -> None:
    now = 0.0
    watchdog = TransferWatchdog(LowSpeedLimit(bytes_per_s=100, window_s=10, clock=lambda: now), "get of 'key'")
    for _ in range(5):
        now += 9
        watchdog.add(0)
        now += 1
        watchdog.add(1000)
    now += 10
    with pytest.raises(Exception, match=r"get of 'key': stalled: 999 bytes in 10.0 s"):
        watchdog.add(999)
