"""The contract of an object in a store as tests: what holds where objects are created once, and never replaced.

Needs pytest, which is no requirement of the registry: nothing but `store_tests` imports this module.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pytest

from pulse_registry.errors import AlreadyExists, CorruptObject, InvalidArgument, NotFound
from pulse_registry.store import Growing, Store

_RACERS: Final = 16


@dataclass(frozen=True, slots=True)
class Subject:
    """A store under test, and ways to its objects that bypass it.

    Attributes:
        store: holds nothing yet.
        raw_get: returns an object's bytes as they lie where the store keeps them; or ``store.get``, which tests less.
        raw_set: puts an object there; or ``store.put``.
    """

    store: Store
    raw_get: Callable[[str], bytes]
    raw_set: Callable[[str, bytes], None]


class ObjectTests:
    """What every store must do with one object: create it whole, once, and read it, all or a range.

    For stores that neither replace objects nor list all keys, as a service's client; others run `StoreTests`, which has
    these tests, too.

    Example:
        class TestMyClient(ObjectTests):
            def key_of(self, name: str) -> str:
                return f"blobs/{sha256(name.encode()).hexdigest()}"

            @pytest.fixture
            def subject(self) -> Subject: ...

    Attributes:
        create_rounds: how often sixteen threads create one key at the same moment. Fewer for a slow server.
    """

    create_rounds = 10

    def key_of(self, name: str) -> str:
        """Return a key that the store takes, another one for each name."""
        return name

    def told(self, key: str) -> str:
        """Return a pattern of how messages name a key."""
        return re.escape(key)

    @pytest.fixture
    def subject(self) -> Subject:
        """Return a store that is empty, for one test."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture `subject`, which returns a Subject")

    @pytest.fixture
    def store(self, subject: Subject) -> Store:
        """Return the store under test."""
        return subject.store

    @pytest.fixture
    def key(self) -> str:
        """Return a key that the store takes."""
        return self.key_of("some/key")

    # put and get

    def test_what_is_put_is_what_lies_in_the_store(self, subject: Subject, key: str) -> None:
        subject.store.put(key, b"data")
        assert subject.raw_get(key) == b"data"

    def test_get_reads_what_lies_in_the_store(self, subject: Subject, key: str) -> None:
        subject.raw_set(key, b"data")
        assert subject.store.get(key) == b"data"
        assert subject.store.exists(key)
        assert subject.store.size(key) == 4

    def test_an_empty_object_is_an_object(self, store: Store, key: str) -> None:
        store.put(key, b"", if_absent=True)
        assert store.get(key) == b""
        assert store.get(key, (0, 0)) == b""
        assert store.size(key) == 0
        assert store.exists(key)
        with pytest.raises(AlreadyExists):
            store.put(key, b"not empty", if_absent=True)

    @pytest.mark.parametrize(
        "body",
        [
            bytearray(b"abcdef"),
            memoryview(b"xabcdefx")[1:-1],
            memoryview(b"abcdef").cast("H"),
            [b"abc", b"def"],
            (b"", bytearray(b"ab"), memoryview(b"cde"), b"", memoryview(b"f")),
            [bytes([byte]) for byte in b"abcdef"],
        ],
        ids=["bytearray", "view", "wide view", "list", "mixed", "single bytes"],
    )
    def test_a_body_may_be_any_buffer_or_a_sequence_of_buffers(self, store: Store, key: str, body: bytes) -> None:
        store.put(key, body)
        assert store.get(key) == b"abcdef"

    def test_an_empty_sequence_is_an_empty_object(self, store: Store, key: str) -> None:
        store.put(key, [])
        assert store.get(key) == b""

    def test_thousands_of_small_buffers_are_written_in_order(self, store: Store, key: str) -> None:
        store.put(key, [index.to_bytes(2, "big") for index in range(5_000)])
        assert store.get(key) == b"".join(index.to_bytes(2, "big") for index in range(5_000))

    @pytest.mark.parametrize(
        "body",
        [memoryview(b"abcdef")[::2], "text", [b"a", "text"], [1, 2]],
        ids=["strided view", "text", "text in a list", "numbers"],
    )
    def test_a_body_that_is_not_contiguous_bytes_is_refused(self, store: Store, key: str, body: bytes) -> None:
        with pytest.raises(InvalidArgument):
            store.put(key, body)
        assert not store.exists(key)

    def test_a_body_that_grows_while_it_is_stored_is_stored_whole_or_not_at_all(self, store: Store, key: str) -> None:
        store.put(key, Growing(iter([b"bcd", b"ef"]), lambda: b"a"), if_absent=True)
        assert store.get(key) == b"abcdef"
        with pytest.raises(AlreadyExists):
            store.put(key, Growing(iter([b"other"]), lambda: b""), if_absent=True)
        assert store.get(key) == b"abcdef"

        other = self.key_of("other")

        def broken() -> Iterator[bytes]:
            yield b"bcd"
            raise CorruptObject("it ends here")

        with pytest.raises(CorruptObject, match="it ends here"):
            store.put(other, Growing(broken(), lambda: b"a"))
        assert not store.exists(other)

    def test_the_caller_may_change_its_buffer_once_put_has_returned(self, store: Store, key: str) -> None:
        buffer = bytearray(b"before")
        store.put(key, buffer)
        buffer[:] = b"after!"
        assert store.get(key) == b"before"

    def test_a_large_object_round_trips_and_is_read_in_ranges(self, store: Store, key: str) -> None:
        block = bytes(range(256)) * 4096
        data = b"".join(bytes([index]) + block for index in range(20))
        store.put(key, [data[: 7 << 20], memoryview(data)[7 << 20 :]])
        assert store.size(key) == len(data)
        assert store.get(key) == data
        for start in range(0, len(data), 3_333_333):
            stop = min(start + 3_333_333, len(data))
            assert store.get(key, (start, stop)) == data[start:stop]

    # create if absent

    def test_create_if_absent_writes_a_free_key_and_refuses_a_taken_one(self, store: Store, key: str) -> None:
        store.put(key, b"first", if_absent=True)
        with pytest.raises(AlreadyExists, match=self.told(key)):
            store.put(key, b"second", if_absent=True)
        assert store.get(key) == b"first"

    def test_of_many_threads_that_create_a_key_exactly_one_wins(self, store: Store) -> None:
        with ThreadPoolExecutor(_RACERS) as pool:
            for turn in range(self.create_rounds):
                key = self.key_of(f"race/{turn}/key")
                start = threading.Barrier(_RACERS)

                def create(racer: int, key: str = key, start: threading.Barrier = start) -> int | None:
                    start.wait()
                    try:
                        store.put(key, [bytes([racer]) * 30_000, bytes([racer]) * 30_000], if_absent=True)
                    except AlreadyExists:
                        return None
                    return racer

                winners = [racer for racer in pool.map(create, range(_RACERS)) if racer is not None]
                assert len(winners) == 1
                assert store.get(key) == bytes(winners) * 60_000

    # ranges

    @pytest.mark.parametrize("span", [(0, 10), (0, 1), (9, 10), (3, 7), (0, 0), (5, 5), (10, 10)])
    def test_a_range_is_half_open(self, store: Store, key: str, span: tuple[int, int]) -> None:
        store.put(key, b"0123456789")
        assert store.get(key, span) == b"0123456789"[span[0] : span[1]]
        buffer = bytearray(span[1] - span[0])
        store.get_into(key, span, buffer)
        assert buffer == b"0123456789"[span[0] : span[1]]

    @pytest.mark.parametrize("span", [(0, 11), (9, 11), (10, 11), (11, 11), (20, 30), (0, 2**40), (0, 2**70)])
    def test_a_range_past_the_end_is_a_corrupt_object(self, store: Store, key: str, span: tuple[int, int]) -> None:
        store.put(key, b"0123456789")
        with pytest.raises(CorruptObject, match=self.told(key)):
            store.get(key, span)
        if span[1] < 100:
            with pytest.raises(CorruptObject, match=self.told(key)):
                store.get_into(key, span, bytearray(span[1] - span[0]))

    @pytest.mark.parametrize("span", [(-1, 5), (-5, -1), (7, 3), (0, -1)])
    def test_a_range_that_is_none_is_refused(self, store: Store, key: str, span: tuple[int, int]) -> None:
        store.put(key, b"0123456789")
        with pytest.raises(InvalidArgument, match="range"):
            store.get(key, span)

    # whole objects

    def test_a_whole_object_that_is_longer_than_the_reader_expects_is_refused(self, store: Store, key: str) -> None:
        store.put(key, b"0123456789")
        assert store.get(key, max_bytes=10) == b"0123456789"
        for least in (9, 1, 0):
            with pytest.raises(CorruptObject, match=self.told(key)):
                store.get(key, max_bytes=least)
            assert store.get(key, (2, 5), max_bytes=least) == b"234"
        assert store.get(key) == b"0123456789"

    def test_a_bound_makes_nothing_of_what_is_not_there(self, store: Store, key: str) -> None:
        with pytest.raises(NotFound, match=self.told(key)):
            store.get(key, max_bytes=0)
        store.put(key, b"")
        assert store.get(key, max_bytes=0) == b""

    def test_a_range_that_can_not_be_read_into_a_buffer_is_told(self, store: Store, key: str) -> None:
        store.put(key, b"0123456789")
        for missing in map(self.key_of, ("key", "some", "some/key/below")):
            with pytest.raises(NotFound, match=self.told(missing)):
                store.get_into(missing, (0, 1), bytearray(1))
        for span, buffer in (((0, 4), bytearray(5)), ((0, 4), b"0123"), ((3, 1), bytearray(2))):
            with pytest.raises(InvalidArgument):
                store.get_into(key, span, buffer)
