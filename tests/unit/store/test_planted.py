"""What others put into a folder that is shared with them: no verb is led out of it, and none waits."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pulse_registry.errors import AlreadyExists, CorruptObject, InvalidArgument, NotFound, StoreUnavailable
from pulse_registry.store import FileStore, file
from tests.support.waiting import HANG_S
from tests.unit.store.test_file import files_in

SECRET = b"of nobody here"


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder that nothing may be read from, written to or deleted from; it is as it was at the end."""
    folder = tmp_path / "outside"
    (folder / "log").mkdir(parents=True)
    names = ["key", "log/key", "head", ".pulse-tmp-1"]
    for name in names:
        (folder / name).write_bytes(SECRET)
    yield folder
    assert files_in(folder) == sorted(names)
    assert {(folder / name).read_bytes() for name in names} == {SECRET}


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    store = FileStore(tmp_path / "root")
    store.put("run/log/key", b"data")
    return store


def plant_socket(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        folder = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            listening.bind(f"/proc/self/fd/{folder}/{place.name}")  # a socket's path is short
        finally:
            os.close(folder)


PLANTED: dict[str, Callable[[Path, Path], None]] = {
    "a link to a file": lambda place, outside: place.symlink_to(outside / "key"),
    "a link to a folder": lambda place, outside: place.symlink_to(outside / "log"),
    "a link to nothing": lambda place, outside: place.symlink_to(outside / "nothing"),
    "a link to itself": lambda place, outside: place.symlink_to(place.name),
    "a link to an object": lambda place, outside: place.symlink_to("log/key"),
    "a pipe": lambda place, outside: os.mkfifo(place),
    "a socket": lambda place, outside: plant_socket(place),
}
planted = pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)


def open_below(folder: Path) -> list[str]:
    """What of a folder this process has open; its other threads open and close what they like."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if path.startswith(str(folder))]


def reading(store: FileStore, key: str) -> list[Callable[[], object]]:
    return [
        partial(store.get, key),
        partial(store.get, key, (0, 1)),
        partial(store.get, key, (0, 0)),
        partial(store.get_into, key, (0, 1), bytearray(1)),
        partial(store.size, key),
        partial(store.exists, key),
        partial(store.modified, key),
    ]


def changing(store: FileStore, key: str) -> list[Callable[[], object]]:
    return [partial(store.put, key, b"", if_absent=True), partial(store.put, key, b""), partial(store.delete, key)]


# First, and in a process of its own, since a reader that waits would do so for ever.
@pytest.mark.slow
def test_no_pipe_keeps_a_reader_waiting(store: FileStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "root/run/head")
    reader = f"import pulse_registry; pulse_registry.open({str(tmp_path / 'root')!r}, run='run', create=False).latest()"
    done = subprocess.run(
        [sys.executable, "-c", reader], capture_output=True, text=True, timeout=HANG_S, check=False
    )  # fmt: skip
    assert done.stderr.splitlines()[-1].startswith("pulse_registry.errors.")


@planted
def test_what_is_no_file_is_no_object(
    store: FileStore, tmp_path: Path, outside: Path, plant: Callable[[Path, Path], None]
) -> None:
    place = tmp_path / "root/run/head"
    plant(place, outside)
    for read in reading(store, "run/head"):
        with pytest.raises(CorruptObject, match=r"'run/head' is a .*remove it"):
            read()
    assert [*store.list("")] == ["run/log/key"]
    assert [*store.list("run/he")] == []
    with pytest.raises(AlreadyExists):
        store.put("run/head", b"new", if_absent=True)
    store.delete("run/head")
    assert not os.path.lexists(place)
    plant(place, outside)
    store.put("run/head", b"new")
    assert store.get("run/head") == b"new"
    assert [*store.list("")] == ["run/head", "run/log/key"]
    assert store.get("run/log/key") == b"data"


@planted
@pytest.mark.parametrize("place", ["run", "run/objects", "run/objects/patch"])
def test_nothing_is_reached_through_what_is_no_folder(
    store: FileStore, tmp_path: Path, outside: Path, plant: Callable[[Path, Path], None], place: str
) -> None:
    if place == "run":
        os.rename(tmp_path / "root/run", tmp_path / "root/moved")
    path = tmp_path / "root" / place
    path.parent.mkdir(exist_ok=True)
    plant(path, outside)
    before = files_in(tmp_path / "root")
    for key in (f"{place}/key", f"{place}/log/key", f"{place}/nothing"):
        for call in [*reading(store, key), *changing(store, key)]:
            with pytest.raises(CorruptObject, match=f"'{key}' in .*'{place}' is a .*remove it"):
                call()
    for prefix in ("", "run", place, f"{place}/", f"{place}/lo", f"{place}/log/"):
        assert not [key for key in store.list(prefix) if key.startswith(f"{place}/") and key != "run/log/key"]
    assert store.remove_leftovers(older_than_s=-1.0) == 0
    assert files_in(tmp_path / "root") == before


def test_folders_that_are_left_behind_are_removed_and_no_link_is_followed(tmp_path: Path, outside: Path) -> None:
    store = FileStore(tmp_path / "root")
    for key in ("gone/a/b/key", "gone/c/key", "gone/d/key", "stays/key"):
        store.put(key, b"data")
    for key in ("gone/a/b/key", "gone/c/key"):
        store.delete(key)
    (outside / "empty").mkdir()
    (tmp_path / "root/gone/c/link").symlink_to(outside)
    (tmp_path / "root/linked").symlink_to(outside)
    for prefix in ("gone", "linked", "linked/empty", "nothing"):
        store.remove_folders(prefix)
    assert sorted(os.listdir(tmp_path / "root/gone")) == ["c", "d"]
    (outside / "empty").rmdir()


def test_the_path_of_the_folder_itself_may_have_links(tmp_path: Path) -> None:
    (tmp_path / "disk/registry").mkdir(parents=True)
    (tmp_path / "home").symlink_to("disk")
    (tmp_path / "policies").symlink_to("home/registry")
    for root in ("policies", "home/registry", "home/new"):
        store = FileStore(tmp_path / root)
        store.put("run/key", b"data")
        assert store.get("run/key") == b"data"
        assert [*store.list("")] == ["run/key"]
        store.delete("run/key")
    assert files_in(tmp_path) == []


def test_a_folder_that_was_removed_and_made_again_is_the_store(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "root")
    for _ in range(2):
        with pytest.raises(NotFound):
            store.get("run/key")
        store.put("run/key", b"data")
        assert store.get("run/key") == b"data"
        os.rename(tmp_path / "root", tmp_path / f"old{len(os.listdir(tmp_path))}")
        assert [*store.list("")] == []


# hard links: another name of a file, and no way out of a folder


def test_another_name_of_a_file_elsewhere_is_removed_and_replaced_and_the_file_stays(
    store: FileStore, tmp_path: Path, outside: Path
) -> None:
    for name in ("a", "b"):
        os.link(outside / "key", tmp_path / f"root/run/{name}")
        assert store.get(f"run/{name}") == SECRET
    with pytest.raises(AlreadyExists):
        store.put("run/a", b"new", if_absent=True)
    store.put("run/a", b"new")
    store.delete("run/b")
    assert [*store.list("")] == ["run/a", "run/log/key"]


def test_who_gives_a_half_written_file_another_name_makes_nobody_win(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def plant(source: str, target: str, **options: Any) -> None:
        link(source, "planted", **options)
        link(source, target, **options)

    monkeypatch.setattr(os, "link", plant)
    with pytest.raises(AlreadyExists):
        store.put("run/log/key", b"other", if_absent=True)
    assert store.get("run/log/key") == b"data"


# what is exchanged while it is looked at


def exchange(root: Path, outside: Path) -> None:
    os.rename(root / "run/log", root.parent / "aside")
    (root / "run/log").symlink_to(outside / "log")


@contextmanager
def exchanged_before(monkeypatch: pytest.MonkeyPatch, call: str, at: int, do: Callable[[], None]) -> Iterator[None]:
    """Do something before the n-th time that the system is asked for ``call``."""
    original = getattr(os, call)
    seen = 0

    def meddle(*args: Any, **options: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == at:
            do()
        return original(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, meddle)
        yield


@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize(
    "verb", ["get", "get a range", "get into", "size", "list", "delete", "put", "create", "leftovers"]
)
def test_a_folder_that_becomes_a_link_at_any_step_leads_nowhere(
    store: FileStore, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, verb: str, at: int
) -> None:
    root, buffer = tmp_path / "root", bytearray(4)
    verbs: dict[str, Callable[[], object]] = {
        "get": lambda: store.get("run/log/key"),
        "get a range": lambda: store.get("run/log/key", (0, 4)),
        "get into": lambda: store.get_into("run/log/key", (0, 4), buffer),
        "size": lambda: store.size("run/log/key"),
        "list": lambda: [*store.list("")],
        "delete": lambda: store.delete("run/log/key"),
        "put": lambda: store.put("run/log/key", b"new!"),
        "create": lambda: store.put("run/log/new", b"new!", if_absent=True),
        "leftovers": lambda: store.remove_leftovers(older_than_s=-1.0),
    }
    answer: object = None
    with exchanged_before(monkeypatch, "open", at, lambda: exchange(root, outside)), suppress(CorruptObject):
        answer = verbs[verb]()
    allowed: dict[str, tuple[object, ...]] = {
        "get": (None, b"data"),
        "get a range": (None, b"data"),
        "size": (None, 4),
        "list": (["run/log/key"], []),
        "leftovers": (None, 0),
    }
    assert answer in allowed.get(verb, (None,))
    assert bytes(buffer) in (bytes(4), b"data")
    assert len(os.listdir(outside / "log")) == 1


def test_a_link_in_the_place_of_a_half_written_file_is_not_followed(
    store: FileStore, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "root/run/log"

    def plant() -> None:
        (temp,) = folder.glob(".pulse-tmp-*")
        temp.unlink()
        temp.symlink_to(outside / "key")

    for call, if_absent in (("link", True), ("replace", False)):
        with exchanged_before(monkeypatch, call, 1, plant):
            store.put("run/log/new", b"data", if_absent=if_absent)
        with pytest.raises(CorruptObject, match="symbolic link"):
            store.get("run/log/new")
        store.delete("run/log/new")


def test_a_folder_that_is_a_link_every_other_moment_leads_nowhere(
    store: FileStore, tmp_path: Path, outside: Path
) -> None:
    folder, aside, done = tmp_path / "root/run/log", tmp_path / "aside", threading.Event()

    def attack() -> None:
        for _ in range(300):
            os.rename(folder, aside)
            try:
                folder.symlink_to(outside / "log")
                folder.unlink()
                os.rename(aside, folder)
            except OSError:  # a put has made the folder again
                shutil.rmtree(aside, ignore_errors=True)
                os.rename(aside, tmp_path / uuid.uuid4().hex) if aside.exists() else None
        done.set()

    attacker = threading.Thread(target=attack)
    attacker.start()
    for _ in range(100_000):
        for verb in (
            lambda: store.get("run/log/key"),
            lambda: store.put("run/log/key", b"data"),
            lambda: store.delete("run/log/new"),
            lambda: store.remove_leftovers(older_than_s=3600.0),
        ):
            with suppress(CorruptObject, NotFound, StoreUnavailable):
                assert verb() in (b"data", None, 0)
        assert {*store.list("run/log/")} <= {"run/log/key"}
        if done.is_set():
            break
    attacker.join()
    assert done.is_set()


# names, and how many there are


def test_folders_whose_names_are_in_no_key_are_not_entered(store: FileStore, tmp_path: Path) -> None:
    for name in (b"\xff", b"line\nbreak", b"\x1b[2J", b"back\\slash", "\x85".encode(), b".pulse-tmp-1"):
        folder = os.path.join(os.fsencode(tmp_path / "root"), name)
        os.mkdir(folder)
        with open(folder + b"/key", "xb"):
            pass
        with open(folder + b"/.pulse-tmp-1", "xb"):
            pass
    assert [*store.list("")] == ["run/log/key"]
    assert store.remove_leftovers(older_than_s=-1.0) == 0


@pytest.mark.slow
def test_folders_without_end_are_listed_as_far_as_keys_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depth, opened = 515, 0
    store = FileStore(tmp_path / "root")
    deepest = "a/" * 511 + "k"
    store.put(deepest, b"data")
    folder = os.open(tmp_path / "root" / ("a/" * 511), os.O_RDONLY)
    for _ in range(511, depth):
        os.mkdir("a", dir_fd=folder)
        with open(os.open("k", os.O_CREAT | os.O_WRONLY, dir_fd=folder), "wb"):
            above, folder = folder, os.open("a", os.O_RDONLY, dir_fd=folder)
        os.close(above)
    os.close(folder)
    scandir = os.scandir

    def note(descriptor: int) -> Any:
        nonlocal opened
        opened = max(opened, len(open_below(tmp_path)))
        return scandir(descriptor)

    monkeypatch.setattr(os, "scandir", note)
    assert [*store.list("")] == [deepest]
    assert opened < 10
    assert open_below(tmp_path) == []


def test_a_folder_of_any_number_of_names_is_listed_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "_NAMES", 100)
    store = FileStore(tmp_path)
    (tmp_path / "log").mkdir()
    names = [f"{number * 7919 % 2003:05d}{'n' * 200}" for number in range(2003)]
    for name in names:
        os.close(os.open(tmp_path / "log" / name, os.O_CREAT | os.O_WRONLY))
    for number in range(0, 2003, 250):
        store.put(f"log/{number:05d}-/key", b"")
        store.put(f"log/{number:05d}/key", b"")
    expected = [*store.list("")]
    assert len(expected) == 2003 + 2 * 9
    assert expected == sorted(expected)
    after = expected[1500]
    assert [*store.list("log/", after)] == expected[1501:]
    tracemalloc.start()
    try:
        assert sum(1 for _ in store.list("log/")) == len(expected)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 250_000  # all names at once are more than 500,000


def test_no_verb_leaves_a_descriptor_open(store: FileStore, tmp_path: Path, outside: Path) -> None:
    (tmp_path / "root/run/link").symlink_to(outside)
    os.mkfifo(tmp_path / "root/run/pipe")
    for key in ("run/log/key", "run/nothing", "run", "nothing/key", "run/log/key/below", "run/link/key", "run/pipe"):
        for call in [*reading(store, key), *changing(store, key)]:
            try:
                call()
            except (CorruptObject, NotFound, AlreadyExists, InvalidArgument):
                continue
    next(store.list(""), None)
    assert open_below(tmp_path) == []
