"""The cache keeps its bound, lets go of what was used least recently, and gives way where the disk is full."""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pulse_registry.cache import partial_object
from pulse_registry.cache.folder import LEDGER
from pulse_registry.cache.node import NodeCache
from pulse_registry.cache.partial_object import PartialObject
from pulse_registry.events import EventKind
from pulse_registry.process.private_files import take_lock
from tests.support.waiting import HANG_S
from tests.unit.cache.building import Node, data_of, taken

RANGE = 64


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let objects of a few hundred bytes have several ranges."""
    monkeypatch.setattr(partial_object, "RANGE_BYTES", RANGE)


def a_node(path: Path, limit: int) -> Node:
    """Return a node whose clock goes on by a second with each reading."""
    return Node(path, limit, clock=itertools.count(1_000_000).__next__)


def test_the_least_recently_used_objects_make_room_for_new_ones(tmp_path: Path) -> None:
    node = a_node(tmp_path, 1000)
    refs = [node.add(number, 240) for number in range(5)]
    for ref in refs[:4]:
        node.read(ref)
        node.settle()
    assert node.read(refs[0]) == data_of(0, 240)
    node.read(refs[4])
    node.settle()
    assert node.whole == {refs[number].blake3 for number in (0, 2, 3, 4)}
    node.view.close()


def test_an_object_over_the_bound_is_read_past_the_cache_and_removes_nothing(tmp_path: Path) -> None:
    node = a_node(tmp_path, 1000)
    small, large = node.add(1, 300), node.add(2, 1001)
    for ref, size in ((small, 300), (large, 1001), (large, 1001), (small, 300)):
        assert node.read(ref) == data_of(1 if size == 300 else 2, size)
        node.settle()
    assert node.whole == {small.blake3}
    assert not node.parts
    assert node.store.bytes_read == 300 + 2 * 1001
    assert [event.kind for event in node.events] == [EventKind.CACHE_BYPASSED]
    node.view.close()


def test_what_is_on_its_way_makes_no_room(tmp_path: Path) -> None:
    node = a_node(tmp_path, 1000)
    begun = PartialObject(node.folder, node.add(1, 600))
    assert begun.lock()
    begun.begin()
    assert node.read(node.add(2, 600)) == data_of(2, 600)
    assert not node.whole
    assert [event.kind for event in node.events] == [EventKind.CACHE_BYPASSED]
    begun.close()  # its process has died
    assert node.read(node.add(3, 600)) == data_of(3, 600)
    node.settle()
    assert node.whole == {node.add(3, 600).blake3}
    assert not node.parts
    node.view.close()


@pytest.mark.parametrize("said", [None, "", "garbage", "9" * 20, "-" + "9" * 19])
def test_a_ledger_that_says_nothing_or_too_much_is_mended(tmp_path: Path, said: str | None) -> None:
    node = a_node(tmp_path, 1000)
    for number in range(20):
        (tmp_path / LEDGER).unlink(missing_ok=True)
        if said is not None:
            (tmp_path / LEDGER).write_text(said)
        assert node.read(node.add(number, 190)) == data_of(number, 190)
        node.settle()
        assert 0 < taken(tmp_path) <= 1000
    assert node.events == []
    node.view.close()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(5000))
    (tmp_path / "folder").mkdir()
    (tmp_path / ("0" * 64)).mkdir()
    node = a_node(tmp_path, 1000)
    for number in range(10):
        node.read(node.add(number, 300))
        node.settle()
    assert (tmp_path / "model.safetensors").stat().st_size == 5000
    assert (tmp_path / "folder").is_dir()
    node.view.close()


@pytest.mark.slow
def test_many_readers_keep_the_bound_and_get_the_right_bytes(tmp_path: Path) -> None:
    limit, sizes = 2000, [random.Random(7).randrange(1, 500) for _ in range(24)]
    nodes = [a_node(tmp_path, limit) for _ in range(3)]
    refs = [[node.add(number, size) for number, size in enumerate(sizes)] for node in nodes]
    most = 0
    done = threading.Event()

    def look() -> None:
        """Note what the objects take, each once whatever it is called just now, while no room is made."""
        nonlocal most
        while not done.is_set():
            found: dict[int, int] = {}
            with (tmp_path / LEDGER).open("ab") as ledger:
                assert take_lock(ledger.fileno(), HANG_S)
                for file in tmp_path.iterdir():
                    with suppress(FileNotFoundError):
                        about = file.stat()
                        found[about.st_ino] = about.st_size if file.name != LEDGER else 0
            most = max(most, sum(found.values()))

    def read(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            at, number = rng.randrange(3), rng.randrange(len(sizes))
            assert nodes[at].read(refs[at][number]) == data_of(number, sizes[number])

    with ThreadPoolExecutor(7) as pool:
        watching = pool.submit(look)
        for future in [pool.submit(read, seed) for seed in range(6)]:
            future.result()
        done.set()
        watching.result()
    for node in nodes:
        node.view.close()
    assert limit // 2 < most <= limit
    assert taken(tmp_path) <= limit


# -- full disks ------------------------------------------------------------------------------------------------------


def failing(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int, only: Callable[[int], bool] = lambda n: True
) -> None:
    """Let a system call fail, each time, or where ``only`` says so of its number."""
    call, count = getattr(os, name), itertools.count()

    def refused(*args: Any, **options: Any) -> Any:
        if only(next(count)):
            raise OSError(number, os.strerror(number))
        return call(*args, **options)

    monkeypatch.setattr(os, name, refused)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_makes_room_first_and_then_is_passed_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    node = a_node(tmp_path, 10_000)
    old, new, last = (node.add(n, 300) for n in range(3))
    node.read(old)
    node.settle()
    with monkeypatch.context() as patched:
        failing(patched, "posix_fallocate", number, lambda n: n == 0)
        assert node.read(new) == data_of(1, 300)
        node.settle()
    assert node.whole == {new.blake3}, "the old one made room"
    assert node.events == []
    with monkeypatch.context() as patched:
        failing(patched, "posix_fallocate", number)
        assert node.read(last) == data_of(2, 300)
    assert not node.parts
    assert [event.kind for event in node.events] == [EventKind.CACHE_BYPASSED]
    assert os.strerror(number) in node.events[0].message
    node.view.close()


CALLS = ("pwrite", "pread", "ftruncate", "rename", "preadv", "open", "fstat", "scandir", "dup", "utime", "unlink")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("name", CALLS)
def test_a_disk_that_fails_at_any_call_fails_no_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    for nth in range(8):
        node = a_node(tmp_path / f"{nth}", 700)
        refs = [node.add(n, 300) for n in range(4)]
        with monkeypatch.context() as patched:
            failing(patched, name, number, lambda n, nth=nth: n >= nth)  # type: ignore[misc]
            for n, ref in enumerate(refs):
                assert node.read(ref) == data_of(n, 300)
                buffer = bytearray(200)
                node.view.get_into(ref.key, (50, 250), buffer)
                assert buffer == data_of(n, 300)[50:250]
            node.view.close()
        assert len(node.events) < 5, "it is told once for each reason"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refused(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refused)
    node = a_node(tmp_path, 1000)
    assert [node.read(node.add(1, 300)) for _ in range(3)] == [data_of(1, 300)] * 3
    assert not node.whole
    assert [event.kind for event in node.events] == [EventKind.CACHE_BYPASSED]
    node.view.close()


def test_a_process_that_stands_still_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    node = a_node(tmp_path, 1000)
    ref = node.add(1, 300)
    still = PartialObject(node.folder, ref)
    assert still.lock()
    told: list[str] = []
    seconds = itertools.count(0, 10)
    reader = NodeCache(
        node.folder,
        node.store,
        lambda: ThreadPoolExecutor(1),
        lambda why, key: told.append(key),
        clock=lambda: float(next(seconds)),
    )
    assert reader.descriptor(ref.key, ref, 0, 300) is None
    assert reader.descriptor(ref.key, ref, 0, 300) is None, "and once is enough"
    assert told == [ref.key]
    assert next(seconds) < 200
    still.close()
    reader.close()
    node.view.close()


# -- anything, in any order ------------------------------------------------------------------------------------------

LIMIT = 1500
SIZES = [1, 60, 64, 65, 200, 300, 500, 700, 1400, 1600]


class Crowd(RuleBasedStateMachine):
    """Three processes, by their views of one folder, of which some die, beside somebody who removes files."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(partial_object, "RANGE_BYTES", RANGE)
        self.temporary = tempfile.TemporaryDirectory()
        self.path = Path(self.temporary.name)
        self.seconds = itertools.count(1_000_000)
        self.nodes = [Node(self.path, LIMIT, clock=self.seconds.__next__) for _ in range(3)]
        self.refs = [[node.add(number, size) for number, size in enumerate(SIZES)] for node in self.nodes]

    @rule(at=st.integers(0, 2), number=st.integers(0, len(SIZES) - 1), data=st.data())
    def read(self, at: int, number: int, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, SIZES[number] - 1))
        stop = data.draw(st.integers(start + 1, SIZES[number]))
        found = self.nodes[at].read(self.refs[at][number], (start, stop))
        assert found == data_of(number, SIZES[number])[start:stop]

    @rule(at=st.integers(0, 2), number=st.integers(0, len(SIZES) - 1))
    def discard(self, at: int, number: int) -> None:
        self.nodes[at].settle()
        there = self.refs[at][number].blake3 in self.nodes[at].whole
        assert self.nodes[at].view.discard(self.refs[at][number].key) == there

    @rule(number=st.integers(0, len(SIZES) - 1), landed=st.sets(st.integers(0, 3)))
    def die(self, number: int, landed: set[int]) -> None:
        """Leave a part behind, as a process does that is killed."""
        self.settle()
        begun = PartialObject(self.nodes[0].folder, self.refs[0][number])
        assert begun.lock()
        try:
            begun.begin()
        except OSError:
            begun.remove()
            begun.close()
            return
        for at in landed & set(range(begun.count)):
            start, stop = begun.span(at)
            begun.write(at, memoryview(data_of(number, SIZES[number])[start:stop]))
        begun.close()

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.settle()
        names = sorted(file.name for file in self.path.iterdir())
        if names:
            (self.path / data.draw(st.sampled_from(names))).unlink()

    @invariant()
    def within_the_bound_and_true_to_its_names(self) -> None:
        self.settle()
        assert taken(self.path) <= LIMIT
        wanted = {ref.blake3: data_of(number, SIZES[number]) for number, ref in enumerate(self.refs[0])}
        for name in self.nodes[0].whole:
            assert (self.path / name).read_bytes() == wanted[name]

    def settle(self) -> None:
        for node in self.nodes:
            node.settle()

    def teardown(self) -> None:
        for node in self.nodes:
            node.view.close()
        self.patch.undo()
        self.temporary.cleanup()


TestCrowd = Crowd.TestCase
TestCrowd.settings = settings(max_examples=15, stateful_step_count=20)
