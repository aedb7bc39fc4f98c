"""What is opened where others may write is ours, made for this user alone, and locked by one at a time."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from pulse_registry.process.private_files import (
    NotOurs,
    hold_lock,
    is_ours,
    make_folder,
    new_file,
    open_file,
    own_folder,
    release_lock,
    replace_file,
    take_lock,
)
from tests.support.waiting import HANG_S


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_file_is_made_for_its_user_alone_and_opened_again(tmp_path: Path) -> None:
    for _ in range(2):
        descriptor = open_file(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        assert os.fstat(descriptor).st_mode & 0o777 == 0o600
        os.close(descriptor)
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "none", os.O_RDWR)
    with pytest.raises(FileNotFoundError):
        open_file(tmp_path / "none" / "file", os.O_RDWR | os.O_CREAT)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_ours_only_where_they_can_not_come_to_it(tmp_path: Path, mode: int) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(mode)
    found = (tmp_path / "file").stat()
    for folder, ours in ((0o700, True), (0o711, False), (0o755, False)):
        tmp_path.chmod(folder)
        assert is_ours(found, tmp_path.stat()) == ours
    assert not is_ours(found)


def test_what_is_not_ours_is_named_and_nothing_stays_open(tmp_path: Path) -> None:
    before = descriptors()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    os.link(tmp_path / "file", tmp_path / "second")
    for name in ("link", "folder", "pipe", "file"):
        for flags in (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT):
            with pytest.raises(NotOurs, match="and is not used") as caught:
                open_file(tmp_path / name, flags)
            assert (caught.value.errno, caught.value.filename) == (errno.EACCES, str(tmp_path / name))
    for name in ("link", "folder", "pipe"):
        with pytest.raises(NotOurs):
            hold_lock(tmp_path / name, 0.0)
    for name in ("link", "file"):
        with pytest.raises(NotADirectoryError if name == "file" else NotOurs), own_folder(tmp_path / name, make=False):
            pass
    assert not (tmp_path / "elsewhere").exists()
    assert descriptors() == before


def test_what_a_file_system_gives_to_another_user_is_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    with pytest.raises(NotOurs, match=f"owner {real}, mode -rw-------, 1 names"):
        open_file(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NotOurs, match=f"it is a folder of user {real}, not of user {real + 1}"), own_folder(tmp_path):
        pass


def test_folders_that_are_missing_are_made_for_their_user_alone_and_others_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b" / "c")
    monkeypatch.chdir(tmp_path)
    make_folder(Path("a/d"))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")} == {0o700}
    assert len(list(tmp_path.rglob("*"))) == 4
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "file" / "below")


def test_a_file_is_replaced_whole_and_no_link_in_its_way_is_written_through(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    for name in ("new", "file"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / name).symlink_to(tmp_path / "mine")
    with own_folder(tmp_path / "folder") as folder:
        replace_file(folder, "file", b"data")
        replace_file(folder, "file", b"other data")
    os.close(new_file(tmp_path / "folder" / "file"))
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["file"]
    assert (tmp_path / "folder" / "file").read_bytes() == b""
    assert (tmp_path / "mine").read_bytes() == b"mine"


def test_one_holds_a_lock_at_a_time_and_a_duplicate_does_not_keep_it(tmp_path: Path) -> None:
    before = descriptors()
    held = hold_lock(tmp_path / "lock", 0.0)
    assert held is not None
    assert hold_lock(tmp_path / "lock", 0.01) is None
    duplicate = os.dup(held)  # as a process has it that was forked off
    release_lock(held)
    again = hold_lock(tmp_path / "lock", 0.0)
    assert again is not None
    other = open_file(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    assert not take_lock(other, 0.01)
    release_lock(again)
    assert take_lock(other)
    for descriptor in (duplicate, other):
        os.close(descriptor)
    assert descriptors() == before


def test_a_lock_that_is_removed_by_who_held_it_keeps_out_nobody_and_lets_in_one(tmp_path: Path) -> None:
    held = hold_lock(tmp_path / "lock", 0.0)
    assert held is not None
    got: list[int | None] = []
    waiting = threading.Thread(target=lambda: got.append(hold_lock(tmp_path / "lock", HANG_S)))
    waiting.start()
    os.unlink(tmp_path / "lock")
    release_lock(held)
    waiting.join()
    (descriptor,) = got
    assert descriptor is not None
    assert os.path.samestat(os.fstat(descriptor), (tmp_path / "lock").stat())
    release_lock(descriptor)
