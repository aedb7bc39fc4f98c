"""The contract of Store as tests: the author of a store subclasses `StoreTests`, with one fixture.

Needs pytest, which is no requirement of the registry: nothing else imports this module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC
from typing import Final

import pytest

from pulse_registry.errors import AlreadyExists, CorruptObject, InvalidArgument, NotFound
from pulse_registry.store import Growing, Store

_RACERS: Final = 16
INVALID_KEYS: Final = (
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    "a/..",
    "a\\b",
    "a\0b",
    "a\nb",
    "a\x7fb",
    "a\x85b",
    "a\ud800b",
    ".pulse-tmp-1",
    "a/.pulse-tmp-1/b",
    "s" * 256,
    "é" * 128,
    "/".join(["s" * 100] * 11),
)
"""Keys that every verb of every store refuses."""
VALID_KEYS: Final = (
    "a",
    "a/b/c/d/e",
    "a b",
    " a ",
    "a::b",
    "a:b",
    "~",
    "~/a",
    "a%20b",
    "a?b#c",
    "a*[b]",
    "...",
    ".hidden",
    ".pulse-tm",
    "ключ/鍵/🔑",
    "e\u0301",
    "s" * 255,
    "/".join(["s" * 100] * 10),
)
"""Keys that every store takes; the last one is as long as a key may be."""


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


class StoreTests:
    """What every store must do: 100 tests for pytest, that a subclass runs on its own store.

    Example:
        class TestMyStore(StoreTests):
            @pytest.fixture
            def subject(self, tmp_path: Path) -> Subject:
                store = MyStore(tmp_path)
                return Subject(store, raw_get=store.get, raw_set=store.put)

    Attributes:
        tells_times: whether the store says when an object was written (`Store.modified`). Leases and garbage collection
            need it.
        create_rounds: how often sixteen threads create one key at the same moment. Fewer for a slow server.
    """

    tells_times = True
    create_rounds = 10

    @pytest.fixture
    def subject(self) -> Subject:
        """Return a store that is empty, for one test."""
        raise NotImplementedError("a subclass of StoreTests has a fixture `subject`, which returns a Subject")

    @pytest.fixture
    def store(self, subject: Subject) -> Store:
        """Return the store under test."""
        return subject.store

    # the store's clock

    def test_an_object_is_as_old_as_its_last_write_by_the_stores_own_clock(self, store: Store) -> None:
        self._needs_times()
        times = []
        for key in ("a/b", "c", "a/b"):
            store.put(key, b"data")
            times.append(store.modified(key))
        assert times == sorted(times)
        assert all(time.tzinfo is UTC for time in times)
        assert store.modified("c") == times[1]
        assert store.modified("a/b") == times[2]

    def test_what_is_not_there_has_no_age(self, store: Store) -> None:
        self._needs_times()
        store.put("a/b", b"data")
        for key in ("a/c", "a"):
            with pytest.raises(NotFound):
                store.modified(key)
        store.delete("a/b")
        with pytest.raises(NotFound):
            store.modified("a/b")
        with pytest.raises(InvalidArgument):
            store.modified("../a")

    # put and get

    def test_what_is_put_is_what_lies_in_the_store(self, subject: Subject) -> None:
        subject.store.put("a/b", b"data")
        assert subject.raw_get("a/b") == b"data"

    def test_get_reads_what_lies_in_the_store(self, subject: Subject) -> None:
        subject.raw_set("a/b", b"data")
        assert subject.store.get("a/b") == b"data"
        assert subject.store.exists("a/b")
        assert subject.store.size("a/b") == 4
        assert [*subject.store.list("")] == ["a/b"]

    @pytest.mark.parametrize("key", VALID_KEYS, ids=ascii)
    def test_every_valid_key_round_trips(self, store: Store, key: str) -> None:
        store.put(key, b"data", if_absent=True)
        assert store.get(key) == b"data"
        assert [*store.list("")] == [key]
        store.delete(key)
        assert not store.exists(key)

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        store.put("empty", b"", if_absent=True)
        assert store.get("empty") == b""
        assert store.get("empty", (0, 0)) == b""
        assert store.size("empty") == 0
        assert store.exists("empty")
        with pytest.raises(AlreadyExists):
            store.put("empty", b"", if_absent=True)

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
    def test_a_body_may_be_any_buffer_or_a_sequence_of_buffers(self, store: Store, body: bytes) -> None:
        store.put("key", body)
        assert store.get("key") == b"abcdef"

    def test_an_empty_sequence_is_an_empty_object(self, store: Store) -> None:
        store.put("key", [])
        assert store.get("key") == b""

    def test_thousands_of_small_buffers_are_written_in_order(self, store: Store) -> None:
        store.put("key", [index.to_bytes(2, "big") for index in range(5_000)])
        assert store.get("key") == b"".join(index.to_bytes(2, "big") for index in range(5_000))

    @pytest.mark.parametrize(
        "body",
        [memoryview(b"abcdef")[::2], "text", [b"a", "text"], [1, 2]],
        ids=["strided view", "text", "text in a list", "numbers"],
    )
    def test_a_body_that_is_not_contiguous_bytes_is_refused(self, store: Store, body: bytes) -> None:
        with pytest.raises(InvalidArgument):
            store.put("key", body)
        assert not store.exists("key")

    def test_a_body_that_grows_while_it_is_stored_is_stored_whole_or_not_at_all(self, store: Store) -> None:
        store.put("key", Growing(iter([b"bcd", b"ef"]), lambda: b"a"), if_absent=True)
        assert store.get("key") == b"abcdef"
        with pytest.raises(AlreadyExists):
            store.put("key", Growing(iter([b"other"]), lambda: b""), if_absent=True)
        assert store.get("key") == b"abcdef"

        def broken() -> Iterator[bytes]:
            yield b"bcd"
            raise CorruptObject("it ends here")

        with pytest.raises(CorruptObject, match="it ends here"):
            store.put("broken", Growing(broken(), lambda: b"a"))
        assert not store.exists("broken")

    def test_the_caller_may_change_its_buffer_once_put_has_returned(self, store: Store) -> None:
        buffer = bytearray(b"before")
        store.put("key", buffer)
        buffer[:] = b"after!"
        assert store.get("key") == b"before"

    def test_a_large_object_round_trips_and_is_read_in_ranges(self, store: Store) -> None:
        block = bytes(range(256)) * 4096
        data = b"".join(bytes([index]) + block for index in range(20))
        store.put("large", [data[: 7 << 20], memoryview(data)[7 << 20 :]])
        assert store.size("large") == len(data)
        assert store.get("large") == data
        for start in range(0, len(data), 3_333_333):
            stop = min(start + 3_333_333, len(data))
            assert store.get("large", (start, stop)) == data[start:stop]

    def test_put_replaces_an_object_by_a_shorter_or_a_longer_one(self, store: Store) -> None:
        for data in (b"first", b"2nd", b"the third"):
            store.put("key", data)
            assert store.get("key") == data
            assert store.size("key") == len(data)
        assert [*store.list("")] == ["key"]

    # create if absent

    def test_create_if_absent_writes_a_free_key_and_refuses_a_taken_one(self, store: Store) -> None:
        store.put("key", b"first", if_absent=True)
        with pytest.raises(AlreadyExists, match="key"):
            store.put("key", b"second", if_absent=True)
        assert store.get("key") == b"first"
        assert [*store.list("")] == ["key"]

    def test_a_key_is_free_again_after_delete(self, store: Store) -> None:
        store.put("key", b"first", if_absent=True)
        store.delete("key")
        store.put("key", b"second", if_absent=True)
        assert store.get("key") == b"second"

    def test_of_many_threads_that_create_a_key_exactly_one_wins(self, store: Store) -> None:
        with ThreadPoolExecutor(_RACERS) as pool:
            for turn in range(self.create_rounds):
                key = f"race/{turn}/key"
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
        assert [*store.list("")] == [f"race/{turn}/key" for turn in range(self.create_rounds)]

    def test_readers_see_whole_objects_while_writers_replace_them(self, store: Store) -> None:
        # Of three lengths: a reader that asks for the length first, and then for so many bytes, gets a part of one.
        whole = {writer: bytes([writer]) * (100_000 + 50_000 * writer) for writer in (0, 1, 2)}
        store.put("key", whole[0])
        done = threading.Event()

        def write(writer: int) -> None:
            half = len(whole[writer]) // 2
            for _ in range(30):
                store.put("key", [whole[writer][:half], whole[writer][half:]])

        def read() -> set[bytes]:
            seen = set()
            while not done.is_set():
                seen.add(store.get("key"))
                assert [*store.list("")] == ["key"]
            return seen

        with ThreadPoolExecutor(4) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            writers = [pool.submit(write, writer) for writer in (1, 2)]
            try:
                for writer in writers:
                    writer.result()
            finally:
                done.set()
            seen = readers[0].result() | readers[1].result()
        assert seen <= {*whole.values()}, "a reader saw a part of an object"

    def test_a_listing_holds_every_stable_key_while_others_come_and_go(self, store: Store) -> None:
        stable = [f"log/{index:03d}" for index in range(50)]
        for key in stable:
            store.put(key, b"")
        done = threading.Event()

        def churn() -> None:
            while not done.is_set():
                store.put("log/passing", b"x")
                store.put("log/000-replaced", b"x")
                store.delete("log/passing")

        with ThreadPoolExecutor(2) as pool:
            workers = [pool.submit(churn) for _ in range(2)]
            try:
                for _ in range(40):
                    listed = [*store.list("log/")]
                    assert [key for key in listed if key in set(stable)] == stable
                    assert listed == sorted(set(listed))
            finally:
                done.set()
            for worker in workers:
                worker.result()

    # ranges

    @pytest.mark.parametrize("span", [(0, 10), (0, 1), (9, 10), (3, 7), (0, 0), (5, 5), (10, 10)])
    def test_a_range_is_half_open(self, store: Store, span: tuple[int, int]) -> None:
        store.put("key", b"0123456789")
        assert store.get("key", span) == b"0123456789"[span[0] : span[1]]
        buffer = bytearray(span[1] - span[0])
        store.get_into("key", span, buffer)
        assert buffer == b"0123456789"[span[0] : span[1]]

    @pytest.mark.parametrize("span", [(0, 11), (9, 11), (10, 11), (11, 11), (20, 30), (0, 2**40), (0, 2**70)])
    def test_a_range_past_the_end_is_a_corrupt_object(self, store: Store, span: tuple[int, int]) -> None:
        store.put("some/key", b"0123456789")
        with pytest.raises(CorruptObject, match="some/key"):
            store.get("some/key", span)
        if span[1] < 100:
            with pytest.raises(CorruptObject, match="some/key"):
                store.get_into("some/key", span, bytearray(span[1] - span[0]))

    @pytest.mark.parametrize("span", [(-1, 5), (-5, -1), (7, 3), (0, -1)])
    def test_a_range_that_is_none_is_refused(self, store: Store, span: tuple[int, int]) -> None:
        store.put("key", b"0123456789")
        with pytest.raises(InvalidArgument, match="range"):
            store.get("key", span)

    # whole objects

    def test_a_whole_object_that_is_longer_than_the_reader_expects_is_refused(self, store: Store) -> None:
        store.put("some/key", b"0123456789")
        assert store.get("some/key", max_bytes=10) == b"0123456789"
        for least in (9, 1, 0):
            with pytest.raises(CorruptObject, match="some/key"):
                store.get("some/key", max_bytes=least)
            assert store.get("some/key", (2, 5), max_bytes=least) == b"234"
        assert store.get("some/key") == b"0123456789"

    def test_a_bound_makes_nothing_of_what_is_not_there(self, store: Store) -> None:
        with pytest.raises(NotFound, match="some/key"):
            store.get("some/key", max_bytes=0)
        store.put("some/key", b"")
        assert store.get("some/key", max_bytes=0) == b""

    def test_a_range_that_can_not_be_read_into_a_buffer_is_told(self, store: Store) -> None:
        store.put("some/key", b"0123456789")
        for missing in ("key", "some", "some/key/below"):
            with pytest.raises(NotFound, match=missing):
                store.get_into(missing, (0, 1), bytearray(1))
        for span, buffer in (((0, 4), bytearray(5)), ((0, 4), b"0123"), ((3, 1), bytearray(2))):
            with pytest.raises(InvalidArgument):
                store.get_into("some/key", span, buffer)

    # what is not there

    def test_what_is_not_there_is_not_found(self, store: Store) -> None:
        store.put("folder/key", b"data")
        for missing in ("key", "folder", "folder/key2", "folder/key/below", "other/key"):
            with pytest.raises(NotFound, match=missing):
                store.get(missing)
            with pytest.raises(NotFound, match=missing):
                store.get(missing, (0, 1))
            with pytest.raises(NotFound, match=missing):
                store.size(missing)
            assert not store.exists(missing)

    def test_delete_is_idempotent_and_touches_nothing_else(self, store: Store) -> None:
        store.delete("never/there")
        store.put("a/b", b"1")
        store.put("a/bc", b"2")
        for key in ("a", "a/b/c", "a/b", "a/b"):
            store.delete(key)
        assert [*store.list("")] == ["a/bc"]
        assert store.get("a/bc") == b"2"

    @pytest.mark.parametrize("key", INVALID_KEYS, ids=ascii)
    def test_an_invalid_key_is_refused_by_every_verb(self, store: Store, key: str) -> None:
        for call in (
            lambda: store.get(key),
            lambda: store.get(key, (0, 1)),
            lambda: store.put(key, b""),
            lambda: store.put(key, b"", if_absent=True),
            lambda: store.exists(key),
            lambda: store.size(key),
            lambda: store.delete(key),
        ):
            with pytest.raises(InvalidArgument, match="key"):
                call()
        assert [*store.list("")] == []

    # list

    def test_an_empty_store_lists_nothing(self, store: Store) -> None:
        assert [*store.list("")] == []
        assert [*store.list("some/prefix")] == []
        assert [*store.list("", after="a")] == []

    def test_keys_are_listed_in_code_point_order(self, store: Store) -> None:
        # '-' and '.' sort before '/', '0' and letters after it. Code points, not UTF-16: U+FF5E < U+1F511.
        keys = [
            "a-",
            "a.b",
            "a/x",
            "a/x-",
            "a0",
            "a/x.y/z",
            "a/xy/z",
            "B",
            "é",
            "\uff5e",
            "\U0001f511",
            "z/1/2",
            "z/1-2",
        ]
        for key in reversed(keys):
            store.put(key, b"")
        assert [*store.list("")] == sorted(keys)

    def test_a_prefix_is_any_beginning_of_a_key(self, store: Store) -> None:
        keys = ["log/0001", "log/0002", "log/001", "log2/0001", "lo", "objects/log/0001"]
        for key in keys:
            store.put(key, b"")
        for prefix in (
            "",
            "l",
            "lo",
            "log",
            "log/",
            "log/0",
            "log/00",
            "log/000",
            "log/0001",
            "log/00011",
            "x",
            "objects/lo",
        ):
            assert [*store.list(prefix)] == sorted(key for key in keys if key.startswith(prefix)), prefix

    def test_a_listing_goes_on_strictly_after_any_string(self, store: Store) -> None:
        keys = sorted(["a/1", "a/2", "a-/1", "a/2/x"[:3] + "0", "b/c/d", "b/c.d", "b0", "c"])
        for key in keys:
            store.put(key, b"")
        for prefix in ("", "a", "a/", "b/c"):
            for after in [
                *keys,
                "",
                "a",
                "a/",
                "a/1\0",
                "a0",
                "b/",
                "b/c",
                "b/c/",
                "b/c/d/e",
                "zzz",
                "\U0010ffff",
            ]:
                expected = [key for key in keys if key.startswith(prefix) and key > after]
                assert [*store.list(prefix, after)] == expected, (prefix, after)

    @pytest.mark.parametrize("prefix", ["/", "/a", "a//", "../", "../a", "a/../", "./a", "a\\", "a\0", "a/.pulse-tmp-"])
    def test_a_prefix_with_which_no_key_can_begin_is_refused(self, store: Store, prefix: str) -> None:
        with pytest.raises(InvalidArgument, match="prefix"):
            [*store.list(prefix)]

    @pytest.mark.parametrize("prefix", [".", "..", "a/.", "a/.."])
    def test_a_prefix_of_dots_is_only_a_string(self, store: Store, prefix: str) -> None:
        store.put("a/...x", b"")
        store.put("...x", b"")
        assert [*store.list(prefix)] == [key for key in ("...x", "a/...x") if key.startswith(prefix)]

    def test_the_url_names_a_scheme(self, store: Store) -> None:
        assert "://" in store.url

    def _needs_times(self) -> None:
        if not self.tells_times:
            pytest.skip("the store does not say when an object was written")
