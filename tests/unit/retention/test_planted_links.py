"""A collector over a folder that others can write to: what they link into it is deleted nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pulse_registry.errors import CorruptObject, NotFound
from pulse_registry.format import keys
from pulse_registry.retention import RetentionPolicy
from pulse_registry.store import FileStore, PrefixStore, WrapperStore
from tests.unit.retention.world import World

AT_ONCE = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0, orphan_seconds=0)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("place", ["", "objects", "objects/patch", "log", "log/snapshots", "leases"])
def test_nothing_is_deleted_behind_a_link(tmp_path: Path, place: str) -> None:
    world = World().commits(12)
    world.lease("reader", 3)
    files = PrefixStore(FileStore(tmp_path / "root"), "run")
    for key, data in world.store.objects.items():
        files.put(key, data)
    outside, planted = tmp_path / "outside", tmp_path / "root/run" / place
    os.rename(planted, outside)
    planted.symlink_to(outside)
    (outside / "notes").write_bytes(b"of nobody here")
    os.utime(outside / "notes", (0, 0))
    before = tree(outside)
    assert len(before) > 1
    for _ in range(3):
        with suppress(CorruptObject, NotFound):
            world.collect(AT_ONCE, through=lambda _: files)
    assert tree(outside) == before


def test_a_collection_passes_by_what_is_planted_and_deletes_the_rest(tmp_path: Path) -> None:
    world = World().commits(12)
    files = FileStore(tmp_path / "root")
    for key, data in world.store.objects.items():
        files.put(key, data)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "notes").write_bytes(b"of nobody here")
    (tmp_path / "root/objects/patch/planted").symlink_to(outside)
    (tmp_path / "root/objects/planted").symlink_to(outside / "notes")
    os.mkfifo(tmp_path / "root/objects/pipe")
    os.mkfifo(tmp_path / "root/head.new")
    assert sum(world.collect(AT_ONCE, through=lambda _: files).deleted for _ in range(2)) > 5
    assert tree(outside) == {"notes": b"of nobody here"}


def test_a_lease_that_becomes_a_link_while_it_is_looked_at_keeps_nothing(tmp_path: Path) -> None:
    world = World().commits(4)
    world.lease("reader", 0)
    files = FileStore(tmp_path / "root")
    for key, data in world.store.objects.items():
        files.put(key, data)

    class Planting(WrapperStore):
        def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
            listed = [*super().list(prefix, after)]
            for key in listed:
                if key.startswith(keys.LEASES):
                    (tmp_path / "root" / key).unlink()
                    (tmp_path / "root" / key).symlink_to(tmp_path / "outside")
            return iter(listed)

    (tmp_path / "outside").write_bytes(b"of nobody here")
    assert world.collect(AT_ONCE, through=lambda _: Planting(files)).held == {}
    assert (tmp_path / "outside").read_bytes() == b"of nobody here"
