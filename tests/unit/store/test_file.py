from __future__ import annotations

import errno
import json
import os
import stat as stat_module
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pulse_registry.errors import AlreadyExists, CorruptObject, InvalidArgument, StoreUnavailable
from pulse_registry.store import FileStore
from pulse_registry.store.root import Root
from tests.support.waiting import HANG_S
from tests.unit.store import processes


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def path_of(name: str, options: dict[str, Any]) -> str:
    """Where a call of the operating system goes that names its folder by a descriptor."""
    return os.path.join(os.readlink(f"/proc/self/fd/{options['dir_fd']}"), name) if "dir_fd" in options else name


def run_processes(*arguments: object) -> Any:
    done = subprocess.run(
        [sys.executable, processes.__file__, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# races and crashes of real processes


@pytest.mark.slow
def test_of_many_processes_that_create_a_key_exactly_one_wins(tmp_path: Path) -> None:
    racers, rounds = 8, 20
    wins = run_processes("race", tmp_path / "root", racers, rounds)
    assert sorted(turn for turn, _ in wins) == [*range(rounds)]
    store = FileStore(tmp_path / "root")
    for turn, winner in wins:
        assert store.get(f"race/{turn}/deep/key") == bytes([winner]) * 40_000
    assert len(files_in(tmp_path)) == rounds


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["create", "replace", "write"])
def test_a_put_killed_at_any_step_leaves_the_whole_object_or_none(tmp_path: Path, mode: str) -> None:
    calls = run_processes("crash", tmp_path, mode)
    assert {"open", "writev", "fsync", "close"} < set(calls)
    assert ("link" if mode == "create" else "replace") in calls
    assert ("mkdir" in calls) == (mode != "replace")
    assert calls.count("writev") > 3
    assert calls[-2:] == ["fsync", "close"]

    key, new = "log/deep/key", b"".join(processes.NEW)
    named = calls.index("link" if mode == "create" else "replace")
    before = [("log/deep/key", processes.OLD)] if mode == "replace" else []
    for at in range(len(calls) + 1):
        store = FileStore(tmp_path / str(at))
        held = [(key, store.get(key)) for key in store.list("")]
        assert held == (before if at <= named else [(key, new)]), (at, calls[at:][:1])
        # The key can be written as if nothing had happened, and what the crash left can be cleared up.
        if held:
            with pytest.raises(AlreadyExists):
                store.put(key, b"next", if_absent=True)
        store.put(key, b"next", if_absent=not held)
        assert store.get(key) == b"next"
        store.remove_leftovers(older_than_s=-1.0)
        assert files_in(tmp_path / str(at)) == [key]


@pytest.mark.slow
def test_a_file_over_the_size_limit_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    name, message = run_processes("limit", tmp_path / "root", 10_000)
    assert name == "StoreUnavailable"
    assert "larger than a file may be" in message
    assert files_in(tmp_path) == []


# failures of the operating system


@pytest.mark.parametrize("if_absent", [False, True])
@pytest.mark.parametrize(
    ("call", "code", "told"),
    [
        ("writev", errno.ENOSPC, "disk is full"),
        ("writev", errno.EDQUOT, "quota"),
        ("fsync", errno.EIO, "try again"),
        ("fsync", errno.ENOSPC, "disk is full"),
        ("open", errno.EACCES, "permission denied"),
        ("open", errno.EROFS, "read-only"),
        ("open", errno.EMFILE, "open files"),
    ],
)
def test_a_put_that_fails_says_why_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int, told: str, if_absent: bool
) -> None:
    store = FileStore(tmp_path)
    store.put("folder/other", b"")

    def fail(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(StoreUnavailable, match=f"put 'folder/key' in file://.*{told}"):
            store.put("folder/key", b"data", if_absent=if_absent)
    assert files_in(tmp_path) == ["folder/other"]
    store.put("folder/key", b"data", if_absent=if_absent)
    assert store.get("folder/key") == b"data"


def test_a_disk_that_fills_up_half_way_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, writev = 0, os.writev

    def fill(descriptor: int, views: Sequence[memoryview]) -> int:
        nonlocal taken
        if taken > 5000:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = writev(descriptor, [views[0][:1000]])
        taken += written
        return written

    store = FileStore(tmp_path)
    store.put("key", b"old")
    monkeypatch.setattr(os, "writev", fill)
    with pytest.raises(StoreUnavailable, match="disk is full"):
        store.put("key", [bytes(1500)] * 10)
    assert taken > 5000
    assert store.get("key") == b"old"
    assert files_in(tmp_path) == ["key"]


def test_a_file_system_that_takes_no_bytes_is_no_endless_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "writev", lambda descriptor, views: 0)
    with pytest.raises(StoreUnavailable, match="takes no more bytes"):
        FileStore(tmp_path).put("key", b"data")
    assert files_in(tmp_path) == []


def test_an_interrupted_put_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    store = FileStore(tmp_path)
    store.put("other", b"")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.put("key", b"data")
    assert files_in(tmp_path) == ["other"]


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_without_hard_links_a_create_is_refused_and_a_plain_put_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(source: str, target: str, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", fail)
    store = FileStore(tmp_path)
    with pytest.raises(StoreUnavailable, match="hard links"):
        store.put("key", b"data", if_absent=True)
    assert files_in(tmp_path) == []
    store.put("key", b"data")
    assert store.get("key") == b"data"


def test_a_link_that_was_made_but_reported_as_refused_is_a_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_twice(source: str, target: str, **options: Any) -> None:
        link(source, target, **options)
        link(source, target, **options)

    monkeypatch.setattr(os, "link", link_twice)
    store = FileStore(tmp_path)
    store.put("key", b"data", if_absent=True)
    assert store.get("key") == b"data"
    with pytest.raises(AlreadyExists):
        store.put("key", b"other", if_absent=True)
    assert files_in(tmp_path) == ["key"]


@pytest.mark.parametrize("names", [["open"], ["stat", "pread", "scandir", "unlink"]], ids=lambda names: names[0])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_every_reading_verb_reports_a_store_that_can_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, names: Sequence[str]
) -> None:
    store = FileStore(tmp_path)
    store.put("key", b"data")

    def fail(*args: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    for name in names:
        monkeypatch.setattr(os, name, fail)
    calls: Sequence[Callable[[], object]] = (
        lambda: store.size("key"),
        lambda: store.exists("key"),
        lambda: store.get("key"),
        lambda: store.get("key", (0, 1)),
        lambda: [*store.list("")],
        lambda: store.delete("key"),
    )
    for call in calls:
        with pytest.raises(StoreUnavailable, match=os.strerror(code)):
            call()


def test_a_file_that_is_longer_than_the_reader_expects_costs_no_memory(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    with open(tmp_path / "head", "wb") as sparse:
        sparse.truncate(3 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptObject, match=r"head.* 3221225472 bytes, and 65536 are the most"):
            store.get("head", max_bytes=65536)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_no_more_is_read_of_a_file_that_grows_than_it_had_when_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    store.put("key", b"data")
    look = os.fstat

    def grow(descriptor: int) -> os.stat_result:
        found = look(descriptor)
        with open(tmp_path / "key", "ab") as file:
            file.write(bytes(1 << 20))
        return found

    monkeypatch.setattr(os, "fstat", grow)
    assert store.get("key", max_bytes=4) == b"data"


# folders


def test_a_folder_removed_during_a_put_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "root")
    store.put("a/b/c", b"1")
    (tmp_path / "root/a/b/c").unlink()
    (tmp_path / "root/a/b").rmdir()
    (tmp_path / "root/a").rmdir()
    (tmp_path / "root").rmdir()
    store.put("a/b/c", b"2", if_absent=True)
    assert store.get("a/b/c") == b"2"


@pytest.mark.parametrize("moment", ["before mkdir", "after mkdir", "before open", "after open"])
def test_folders_that_others_make_and_remove_do_not_disturb_a_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    when, name = moment.split()
    meddled: list[str] = []
    original = getattr(os, name)

    def meddle(path: str, *args: Any, **options: Any) -> Any:
        place = path_of(path, options)
        made = original(path, *args, **options) if when == "after" else None
        folder = place if name == "mkdir" or os.path.isdir(place) else os.path.dirname(place)
        if folder.startswith(f"{tmp_path}/root") and len(meddled) < 6:
            meddled.append(folder)
            if moment == "before mkdir":
                original(path, **options)
            elif os.path.isdir(folder) and not os.listdir(folder):
                os.rmdir(folder)
        return made if when == "after" else original(path, *args, **options)

    store = FileStore(tmp_path / "root")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, meddle)
        store.put("a/b/key", b"data", if_absent=True)
    assert len(meddled) > 2
    assert store.get("a/b/key") == b"data"
    assert files_in(tmp_path) == ["root/a/b/key"]


def test_a_folder_that_is_removed_for_ever_is_an_unavailable_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def make_and_remove(path: str, **options: Any) -> None:
        mkdir(path, **options)
        os.rmdir(path, **options)

    store = FileStore(tmp_path)
    monkeypatch.setattr(os, "mkdir", make_and_remove)
    with pytest.raises(StoreUnavailable, match="again and again"):
        store.put("a/key", b"data")


def test_the_names_of_new_folders_are_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    store = FileStore(tmp_path / "root")
    store.put("a/b/one", b"1")
    root = str(tmp_path / "root")
    temp = synced[3]
    assert ".pulse-tmp-" in temp
    assert synced == [str(tmp_path), root, f"{root}/a", temp, f"{root}/a/b"]
    synced.clear()
    store.put("a/b/two", b"2", if_absent=True)
    assert [path for path in synced if ".pulse-tmp-" not in path] == [f"{root}/a/b"]


def test_a_folder_that_can_not_be_synced_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    FileStore(tmp_path).put("a/key", b"data")
    assert files_in(tmp_path) == ["a/key"]


@pytest.mark.parametrize("if_absent", [False, True])
def test_an_object_can_not_be_the_folder_of_another(tmp_path: Path, if_absent: bool) -> None:
    store = FileStore(tmp_path)
    store.put("a/b", b"data")
    for key in ("a", "a/b/c", "a/b/c/d"):
        with pytest.raises(InvalidArgument, match="folder of another"):
            store.put(key, b"", if_absent=if_absent)
    assert files_in(tmp_path) == ["a/b"]


def test_files_that_are_no_objects_are_not_listed(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("log/1", b"")
    (tmp_path / "log/.pulse-tmp-1").write_bytes(b"half")
    (tmp_path / ".pulse-tmp-folder").mkdir()
    (tmp_path / ".pulse-tmp-folder/key").write_bytes(b"")
    (tmp_path / "log/line\nbreak").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/log/\xff")).write_bytes(b"")
    (tmp_path / "log/dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "log/pipe")
    assert [*store.list("")] == ["log/1"]
    assert [*store.list("log/")] == ["log/1"]


def test_leftovers_are_removed_by_age(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("a/key", b"data")
    for name, age in (("old", 100.0), ("new", 10.0)):
        path = tmp_path / f"a/.pulse-tmp-{name}"
        path.write_bytes(b"half")
        os.utime(path, (1000.0 - age, 1000.0 - age))
    assert store.remove_leftovers(older_than_s=50.0, now=lambda: 1000.0) == 1
    assert files_in(tmp_path) == ["a/.pulse-tmp-new", "a/key"]


def test_leftovers_in_a_folder_that_can_not_be_read_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    assert FileStore(tmp_path / "nothing yet").remove_leftovers(older_than_s=0.0) == 0
    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(StoreUnavailable, match="permission denied"):
        FileStore(tmp_path).remove_leftovers(older_than_s=0.0)


def test_listing_after_a_key_does_not_read_the_folders_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    for number in range(10):
        store.put(f"{number}/key", b"")
    read: list[str] = []
    scandir = os.scandir

    def note(descriptor: int) -> Any:
        read.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        return scandir(descriptor)

    monkeypatch.setattr(os, "scandir", note)
    assert [*store.list("", after="7/key")] == ["8/key", "9/key"]
    assert read[1:] == ["7", "8", "9"]


def test_folders_take_a_look_at_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path)
    for number in range(10):
        store.put(f"{number}/log/key", b"")
    read: list[int] = []
    scandir = os.scandir

    def note(descriptor: int) -> Any:
        read.append(descriptor)
        return scandir(descriptor)

    monkeypatch.setattr(os, "scandir", note)
    assert [*store.folders("")] == [f"{number}/" for number in range(10)]
    assert len(read) == 1


# the folder itself


def test_opening_and_reading_make_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "root")
    assert [*store.list("")] == []
    assert not store.exists("key")
    store.delete("key")
    assert [*tmp_path.iterdir()] == []


def test_a_relative_path_is_meant_from_where_the_store_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = FileStore("root")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.put("key", b"data")
    assert files_in(tmp_path) == ["root/key"]


def test_a_root_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgument, match="not a folder"):
        FileStore(tmp_path / "file")
    for root in ("", "a\0b"):
        with pytest.raises(InvalidArgument):
            FileStore(root)


@pytest.mark.parametrize("moment", [2.0**40, -(2.0**40)])
def test_a_file_whose_time_is_in_no_calendar_is_told_as_written_at_its_end(
    moment: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real = FileStore(tmp_path), Root.stat
    store.put("leases/a.json", b"{}")

    def stat(root: Root, key: str) -> os.stat_result:  # not every file system keeps such a time
        found = [*real(root, key)]
        found[stat_module.ST_MTIME] = int(moment)
        return os.stat_result(found)

    monkeypatch.setattr(Root, "stat", stat)
    assert store.modified("leases/a.json").year in (2, 9999)
