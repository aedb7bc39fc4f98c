"""Pulls into a folder that others can write to: what they link there is neither written nor waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import pulse_registry
from pulse_registry.checkpoint import pull_checkpoint
from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.format.keyframe import INDEX_NAME
from tests.support.command_line import Run

MINE = b"of nobody here" * 1000


class Meddler(FileOperations):
    """Puts something in the place of a file before, or behind, an operation on it."""

    def __init__(self, operation: str, when: str, plant: Callable[[Path], None]) -> None:
        self.operation, self.when, self.plant = operation, when, plant
        self.planted = 0

    def _meddle(self, operation: str, when: str, path: Path) -> None:
        if (operation, when) == (self.operation, self.when):
            path.unlink(missing_ok=True)
            self.plant(path)
            self.planted += 1

    def create(self, path: Path, head: bytes, size: int) -> int:
        self._meddle("create", "before", path)
        made = super().create(path, head, size)
        self._meddle("create", "behind", path)
        return made

    def copy(self, source: Path, target: Path) -> int:
        self._meddle("copy", "before", target)
        made = super().copy(source, target)
        self._meddle("copy", "behind", target)
        return made

    def write(self, path: Path, data: bytes) -> None:
        self._meddle("write", "before", path)
        super().write(path, data)

    def sync(self, path: Path) -> None:
        self._meddle("sync", "before", path)
        super().sync(path)

    def replace(self, source: Path, target: Path) -> None:
        self._meddle("replace", "before", target)
        super().replace(source, target)


@pytest.mark.parametrize("plant", [os.symlink, os.link, lambda _, place: os.mkfifo(place)])
@pytest.mark.parametrize(
    ("operation", "when"),
    [
        ("create", "before"),
        ("create", "behind"),
        ("copy", "before"),
        ("copy", "behind"),
        ("write", "before"),
        ("sync", "before"),
        ("replace", "before"),
    ],
)
def test_no_pull_writes_a_file_elsewhere(
    run: Run, tmp_path: Path, operation: str, when: str, plant: Callable[[Path, Path], None]
) -> None:
    mine, out = tmp_path / "mine", tmp_path / "out"
    mine.write_bytes(MINE)
    with pulse_registry.open(str(run.root), run=run.name) as registry:
        pull_checkpoint(registry, 1, into=out)
        files = Meddler(operation, when, lambda place: plant(mine, place))
        try:
            pull_checkpoint(registry, 4, into=out, replace=operation == "create", files=files)
        except pulse_registry.PulseError:
            assert files.planted
        assert files.planted
        assert mine.read_bytes() == MINE
        (out / INDEX_NAME).unlink(missing_ok=True)
        for left in out.glob("model-*"):
            left.unlink()
        assert pull_checkpoint(registry, 4, into=out).verified


def test_a_link_that_lies_where_the_new_index_goes_is_removed_and_not_written_through(run: Run, tmp_path: Path) -> None:
    mine, out = tmp_path / "mine", tmp_path / "out"
    mine.write_bytes(MINE)
    out.mkdir()
    (out / ".pulse-index.new").symlink_to(mine)
    with pulse_registry.open(str(run.root), run=run.name) as registry:
        assert pull_checkpoint(registry, 4, into=out).verified
    assert mine.read_bytes() == MINE
    assert not os.path.lexists(out / ".pulse-index.new")
