"""What is read through the cache is what the store has, comes once, and gets its name only when it has been checked."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pulse_registry.cache import cache_folder, partial_object
from pulse_registry.cache.partial_object import PartialObject
from pulse_registry.errors import CorruptObject, InvalidArgument, NotFound, StoreUnavailable
from pulse_registry.events import EventKind
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange, RetryStore
from pulse_registry.store.wrappers.retry import TOTAL_S, RetryPolicy
from pulse_registry.testing import Fault, FaultStore
from tests.support.clock import Clock
from tests.support.records import DictStore
from tests.support.waiting import HANG_S
from tests.unit.cache.building import Node, data_of, taken

RANGE = 64


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let objects of a few hundred bytes have several ranges."""
    monkeypatch.setattr(partial_object, "RANGE_BYTES", RANGE)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "cache")
    yield made
    made.view.close()


@pytest.mark.parametrize("size", [1, RANGE - 1, RANGE, RANGE + 1, 5 * RANGE, 5 * RANGE + 3])
def test_any_range_of_an_object_is_the_stores_and_the_store_is_read_once(node: Node, size: int) -> None:
    ref = node.add(1, size)
    whole = data_of(1, size)
    for start in {0, 1, RANGE - 1, RANGE, size - 1} & set(range(size)):
        for stop in {start + 1, RANGE, RANGE + 1, size} & set(range(start + 1, size + 1)):
            assert node.read(ref, (start, stop)) == whole[start:stop]
            buffer = bytearray(stop - start)
            node.view.get_into(ref.key, (start, stop), buffer)
            assert buffer == whole[start:stop]
    assert node.store.bytes_read == size
    node.settle()
    assert node.whole == {ref.blake3}
    assert not node.parts
    assert node.view.size(ref.key) == size
    assert node.store.calls["size"] == 0
    assert node.events == []


def test_a_store_that_is_away_for_good_is_waited_for_once(tmp_path: Path) -> None:
    clock, objects = Clock(), DictStore()
    faults = FaultStore(objects, [Fault("fail_before")])
    node = Node(tmp_path / "cache", store=RetryStore(faults, RetryPolicy(clock=clock, sleep=clock.sleep)))
    node.objects = objects
    ref = node.add(1, RANGE)  # one range, so that one thread at a time sleeps
    with pytest.raises(StoreUnavailable, match="gave up"):
        node.read(ref)
    node.view.close()
    assert clock.now == pytest.approx(TOTAL_S)
    assert len(faults.fired) < 40


def test_what_was_not_expected_goes_to_the_store_and_leaves_nothing(node: Node) -> None:
    node.objects.put("log/0", b"record")
    assert node.view.get("log/0") == b"record"
    assert node.view.get("log/0", (0, 3)) == b"rec"
    assert not node.path.exists()


def test_ranges_that_the_object_does_not_have_are_answered_by_the_store(node: Node) -> None:
    ref = node.add(1, 100)
    node.objects.objects[ref.key] += b"more"
    assert node.read(ref, (50, 104)) == node.objects.objects[ref.key][50:104]
    assert node.read(ref, (7, 7)) == b""
    assert node.view.get(ref.key) == node.objects.objects[ref.key]
    assert not node.path.exists()


def test_another_process_finds_what_one_has_fetched(node: Node) -> None:
    ref = node.add(1, 300)
    node.read(ref)
    node.settle()
    other = Node(node.path)
    other.view.expect([ref])
    assert other.read(ref) == data_of(1, 300)
    assert other.store.bytes_read == 0
    other.view.close()


def test_ranges_are_served_as_they_land(tmp_path: Path) -> None:
    gate = threading.Event()

    class Slow(DictStore):
        def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
            if byte_range is not None and byte_range[0] >= 2 * RANGE:
                assert gate.wait(HANG_S)
            return super().get(key, byte_range, max_bytes=max_bytes)

    slow = Slow()
    node, other = Node(tmp_path, store=slow), Node(tmp_path)
    ref = node.add(1, 4 * RANGE)
    slow.objects = node.objects.objects
    other.view.expect([ref])
    assert node.read(ref, (0, 2 * RANGE)) == data_of(1, 4 * RANGE)[: 2 * RANGE]
    assert other.read(ref, (3, RANGE + 1)) == data_of(1, 4 * RANGE)[3 : RANGE + 1]
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(other.read, ref)
        assert not node.whole
        gate.set()
        assert rest.result() == data_of(1, 4 * RANGE)
    assert other.store.bytes_read == 0
    node.view.close()
    other.view.close()


# -- what a process that was killed leaves ----------------------------------------------------------------------------


def left_by_a_killed_process(node: Node, number: int, size: int, landed: dict[int, bytes]) -> None:
    """Leave a part in which some ranges have landed."""
    ref = node.add(number, size)
    begun = PartialObject(node.folder, ref)
    assert begun.lock()
    begun.begin()
    for at, data in landed.items():
        begun.write(at, memoryview(data))
    begun.close()


def test_the_next_process_goes_on_with_what_a_killed_one_has_left(node: Node) -> None:
    whole = data_of(1, 5 * RANGE)
    left_by_a_killed_process(node, 1, len(whole), {0: whole[:RANGE], 3: whole[3 * RANGE : 4 * RANGE]})
    ref = node.add(1, len(whole))
    assert node.read(ref) == whole
    assert node.store.bytes_read == 3 * RANGE
    node.settle()
    assert node.whole == {ref.blake3}


def test_what_a_killed_process_has_left_is_never_trusted_unchecked(node: Node) -> None:
    whole = data_of(1, 5 * RANGE)
    left_by_a_killed_process(node, 1, len(whole), {0: whole[:RANGE], 3: b"x" * RANGE})
    ref = node.add(1, len(whole))
    read = node.read(ref)
    if read != whole:  # which the reader finds out; it got it before the end of the download, which did too
        assert node.view.discard(ref.key), "there was something to drop"
    assert node.read(ref) == whole
    node.settle()
    assert (node.path / ref.blake3).read_bytes() == whole
    assert node.whole == {ref.blake3}
    assert node.events == []


@pytest.mark.parametrize("size", [0, 17, 300, 305, 10_000])
def test_a_part_of_any_length_is_replaced(node: Node, size: int) -> None:
    ref = node.add(1, 300)
    node.path.mkdir()
    (node.path / f"{ref.blake3}.part").write_bytes(b"\2" * size)
    (node.path / f"{ref.blake3}.part").chmod(0o600)
    assert node.read(ref) == data_of(1, 300)
    node.settle()
    assert node.whole == {ref.blake3}


# -- a store that fails -----------------------------------------------------------------------------------------------


def test_an_object_that_is_not_what_was_committed_gets_no_name(node: Node) -> None:
    ref = node.add(1, 300)
    node.objects.objects[ref.key] = data_of(2, 300)
    assert node.read(ref) == data_of(2, 300), "as the store has it: the reader checks it"
    node.settle()
    assert not node.whole | node.parts
    assert not node.view.discard(ref.key), "no copy was to blame"
    node.objects.objects[ref.key] = data_of(1, 300)
    assert node.read(ref) == data_of(1, 300)
    node.settle()
    assert node.whole == {ref.blake3}


def test_errors_of_the_store_reach_the_reader_and_what_has_landed_stays(tmp_path: Path) -> None:
    objects = DictStore()
    fault = FaultStore(objects, [Fault("fail_before", matches=lambda verb, key: broken.is_set())])
    broken = threading.Event()
    node = Node(tmp_path, store=fault)
    node.objects = objects
    ref = node.add(1, 300)
    broken.set()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            node.read(ref)
    broken.clear()
    assert node.read(ref) == data_of(1, 300)
    gone = node.add(2, 300)
    del objects.objects[gone.key]
    with pytest.raises(NotFound):
        node.read(gone)
    short = node.add(3, 300)
    objects.objects[short.key] = objects.objects[short.key][:200]
    with pytest.raises(CorruptObject):
        node.view.get_into(short.key, (0, 300), bytearray(300))
    node.settle()
    assert (node.whole, node.parts) == ({ref.blake3}, set())
    node.view.close()


# -- a folder that others have been at --------------------------------------------------------------------------------


def a_link(path: Path, elsewhere: Path) -> None:
    elsewhere.write_bytes(data_of(1, 300))
    path.symlink_to(elsewhere)


HOSTILE = {
    "a link to the right bytes": a_link,
    "a dangling link": lambda path, elsewhere: path.symlink_to(elsewhere),
    "a pipe": lambda path, elsewhere: os.mkfifo(path),
    "too short": lambda path, elsewhere: path.write_bytes(data_of(1, 299)),
    "too long": lambda path, elsewhere: path.write_bytes(data_of(1, 300) + b"x"),
    "empty": lambda path, elsewhere: path.touch(),
    "writable by others": lambda path, elsewhere: (path.write_bytes(data_of(1, 300)), path.chmod(0o666)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_can_not_be_an_object_of_ours_is_replaced(node: Node, tmp_path: Path, what: str) -> None:
    ref = node.add(1, 300)
    node.path.mkdir()
    HOSTILE[what](node.path / ref.blake3, tmp_path / "elsewhere")
    assert node.read(ref) == data_of(1, 300)
    assert node.store.bytes_read == 300
    node.settle()
    assert not (node.path / ref.blake3).is_symlink()
    assert (node.path / ref.blake3).read_bytes() == data_of(1, 300)
    assert node.events == []


@pytest.mark.parametrize("what", [name for name in HOSTILE if "link" in name or "pipe" in name or "writable" in name])
@pytest.mark.parametrize("suffix", [".part", "ledger"])
def test_a_cache_that_can_not_be_used_is_passed_by_and_told_of_once(
    node: Node, tmp_path: Path, what: str, suffix: str
) -> None:
    refs = [node.add(number, 300) for number in (1, 2)]
    node.path.mkdir()
    for ref in refs:
        name = ".pulse-cache" if suffix == "ledger" else f"{ref.blake3}.part"
        (tmp_path / "elsewhere").unlink(missing_ok=True)
        if not (node.path / name).is_symlink() and not (node.path / name).exists():
            HOSTILE[what](node.path / name, tmp_path / "elsewhere")
    assert [node.read(ref) for ref in refs for _ in range(2)] == [data_of(n, 300) for n in (1, 1, 2, 2)]
    assert not node.whole
    assert [event.kind for event in node.events] == [EventKind.CACHE_BYPASSED]
    assert "a file in it was refused: it is " in node.events[0].message


def test_another_users_copy_is_not_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = node.add(1, 300)
    node.read(ref)
    node.settle()
    (node.path / ref.blake3).write_bytes(data_of(9, 300))
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    assert node.read(ref) == data_of(1, 300)
    assert [event.kind for event in node.events] == [EventKind.CACHE_BYPASSED]


def test_the_folder_may_vanish_at_any_time(node: Node) -> None:
    refs = [node.add(number, 300) for number in range(3)]
    for number, ref in enumerate(refs):
        assert node.read(ref) == data_of(number, 300)
        node.settle()
        for file in node.path.iterdir():
            file.unlink()
        node.path.rmdir()
        assert node.read(ref) == data_of(number, 300)
        node.settle()
    assert node.events == []


def test_a_file_where_the_folder_should_be_is_passed_by(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("mine")
    node = Node(tmp_path / "cache")
    assert node.read(node.add(1, 300)) == data_of(1, 300)
    assert [event.kind for event in node.events] == [EventKind.CACHE_BYPASSED]
    assert (tmp_path / "cache").read_text() == "mine"


def test_files_are_for_their_user_alone(node: Node) -> None:
    node.read(node.add(1, 300))
    node.settle()
    assert node.path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in node.path.iterdir()} == {0o600}


# -- settings ---------------------------------------------------------------------------------------------------------


def test_the_folder_and_its_bound_come_from_the_environment_if_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PULSE_CACHE", raising=False)
    monkeypatch.delenv("PULSE_CACHE_BYTES", raising=False)
    assert cache_folder() is None
    monkeypatch.setenv("PULSE_CACHE", str(tmp_path / "there"))
    monkeypatch.setenv("PULSE_CACHE_BYTES", "1000")
    found = cache_folder()
    assert found is not None
    assert (found.path, found.limit()) == (tmp_path / "there", 1000)
    assert cache_folder("") is None
    given = cache_folder(tmp_path / "given", 5)
    assert given is not None
    assert (given.path, given.limit()) == (tmp_path / "given", 5)
    for text in ("0", "-1", "many", "1e9"):
        monkeypatch.setenv("PULSE_CACHE_BYTES", text)
        with pytest.raises(InvalidArgument):
            cache_folder()


def test_half_of_the_disk_is_the_bound_where_none_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULSE_CACHE_BYTES", raising=False)
    folder = cache_folder(tmp_path / "cache")
    disk = os.statvfs(tmp_path)
    assert folder is not None
    assert folder.limit() == disk.f_frsize * disk.f_blocks // 2
    assert taken(tmp_path / "cache") == 0
