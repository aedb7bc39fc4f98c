"""The contract of Store as tests: the author of a store subclasses `StoreTests`, with one fixture.

Needs pytest, which is no requirement of the registry: nothing else imports this module.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC
from typing import Final

import pytest

from pulse_registry.errors import AlreadyExists, InvalidArgument, NotFound
from pulse_registry.store import Store
from pulse_registry.testing.object_tests import ObjectTests, Subject

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


class StoreTests(ObjectTests):
    """What every store must do: some 120 tests for pytest, that a subclass runs on its own store.

    Example:
        class TestMyStore(StoreTests):
            @pytest.fixture
            def subject(self, tmp_path: Path) -> Subject:
                store = MyStore(tmp_path)
                return Subject(store, raw_get=store.get, raw_set=store.put)

    Attributes:
        tells_times: whether the store says when an object was written (`Store.modified`). Leases and garbage collection
            need it.
        create_rounds: as `ObjectTests` has it.
    """

    tells_times = True

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

    @pytest.mark.parametrize("key", VALID_KEYS, ids=ascii)
    def test_every_valid_key_round_trips(self, store: Store, key: str) -> None:
        store.put(key, b"data", if_absent=True)
        assert store.get(key) == b"data"
        assert [*store.list("")] == [key]
        store.delete(key)
        assert not store.exists(key)

    def test_put_replaces_an_object_by_a_shorter_or_a_longer_one(self, store: Store) -> None:
        for data in (b"first", b"2nd", b"the third"):
            store.put("key", data)
            assert store.get("key") == data
            assert store.size("key") == len(data)
        assert [*store.list("")] == ["key"]

    # create if absent

    def test_what_is_there_is_listed_once_however_it_came_there(self, subject: Subject) -> None:
        subject.raw_set("a/b", b"data")
        subject.store.put("c", b"", if_absent=True)
        for data in (b"", b"other"):
            with pytest.raises(AlreadyExists):
                subject.store.put("c", data, if_absent=True)
        subject.store.put("c", b"other")
        assert [*subject.store.list("")] == ["a/b", "c"]

    def test_a_key_is_free_again_after_delete(self, store: Store) -> None:
        store.put("key", b"first", if_absent=True)
        store.delete("key")
        store.put("key", b"second", if_absent=True)
        assert store.get("key") == b"second"

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

    # folders

    def test_the_folders_behind_a_prefix_are_those_of_the_keys_there(self, store: Store) -> None:
        keys = ["a", "a-/x", "a./x", "b/x/1", "b/x/2", "b/y/z/1", "b/w", "b0/x", "bb/x", "B/x", "é/x", "\U0001f511/x"]
        for key in reversed(keys):
            store.put(key, b"")
        for prefix in ("", "a", "a-", "b", "b/", "b/x", "b/x/", "b/y/", "x", "é"):
            ends = {key: key.find("/", len(prefix)) + 1 for key in keys if key.startswith(prefix)}
            folders = sorted({key[:end] for key, end in ends.items() if end})
            assert [*store.folders(prefix)] == folders, prefix
            for after in ("", "a", "a-", "a-/", "a-/x", "a0", "b", "b/", "b/x", "b/x/", "b/x0", "zz", "\U0010ffff"):
                expected = [folder for folder in folders if folder > after]
                assert [*store.folders(prefix, after)] == expected, (prefix, after)

    def test_a_folder_whose_objects_were_deleted_hides_no_other(self, store: Store) -> None:
        for key in ("a/x", "b/x", "b/y/z", "c/x"):
            store.put(key, b"")
        for key in ("a/x", "b/x"):
            store.delete(key)
        assert [folder for folder in store.folders("") if folder != "a/"] == ["b/", "c/"]

    @pytest.mark.parametrize("prefix", ["/", "a//", "../a", "a\\", "a\0", "a/.pulse-tmp-"])
    def test_a_prefix_with_which_no_folder_can_begin_is_refused(self, store: Store, prefix: str) -> None:
        with pytest.raises(InvalidArgument, match="prefix"):
            [*store.folders(prefix)]

    def test_the_url_names_a_scheme(self, store: Store) -> None:
        assert "://" in store.url

    def _needs_times(self) -> None:
        if not self.tells_times:
            pytest.skip("the store does not say when an object was written")
