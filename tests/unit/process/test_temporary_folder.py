"""Where temporary files go: into the folder that was named, else onto a disk, if there is a choice."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import pulse_registry
from pulse_registry.compaction import local_copy, temp_patch
from pulse_registry.process import temporary_folder as temporary
from pulse_registry.process.temporary_folder import file_system, temporary_folder
from pulse_registry.pull import download
from pulse_schemas import ObjectRef
from tests.support.records import DictStore
from tests.support.registries import quick

MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
tmpfs /run/my\\040disk tmpfs rw 0 0
/dev/vdb /tmp/disk xfs rw 0 0
tmpfs /stacked tmpfs rw 0 0
/dev/vdc /stacked ext4 rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/tmp", "tmpfs"),
        ("/tmp/a/b", "tmpfs"),
        ("/tmpfile", "ext4"),
        ("/tmp/disk/a", "xfs"),
        ("/run/my disk/a", "tmpfs"),
        ("/stacked/a", "ext4"),
    ],
)
def test_a_path_is_on_the_file_system_that_is_mounted_nearest_above_it(path: str, kind: str):
    assert file_system(path, MOUNTS) == kind


@pytest.fixture
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("unnamed")
@pytest.mark.parametrize(
    ("in_ram", "chosen"), [(["/tmp"], "/var/tmp"), (["/tmp", "/var/tmp"], "/tmp"), ([], "/tmp"), (["/var/tmp"], "/tmp")]
)
def test_a_folder_in_ram_is_passed_over_if_there_is_one_on_a_disk(
    in_ram: list[str], chosen: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/tmp")
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(os.path, "realpath", lambda path: path)
    monkeypatch.setattr(temporary, "file_system", lambda path, _: "tmpfs" if path in in_ram else "ext4")
    assert temporary_folder() == Path(chosen)


@pytest.mark.usefixtures("unnamed")
def test_a_folder_that_cannot_be_written_is_not_chosen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/tmp")
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(temporary, "file_system", lambda *_: "tmpfs")
    assert temporary_folder() == Path("/tmp")


def test_what_the_environment_names_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(temporary, "file_system", lambda *_: "tmpfs")
    assert temporary_folder() == tmp_path


def folders_of_temporary_files(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the folder of each temporary file that is made from now on."""
    made: list[object] = []
    real = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: made.append(dir) or real(dir=dir))
    return made


def compacted(registry: pulse_registry.Registry) -> None:
    """Push what a compactor merges, and merge it: it needs a copy of the weights, and one of the patch."""
    weights = np.zeros(4, np.float32)
    for step in range(5):
        weights[0] = step
        registry.push(step, {"w": weights})
    compactor = registry.compactor()
    assert compactor.step() is not None
    compactor.close()


@pytest.mark.parametrize("by_environment", [False, True])
def test_open_takes_a_folder_for_what_is_on_its_way(
    by_environment: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given = {} if by_environment else {"pull": pulse_registry.PullOptions(spool=tmp_path)}
    if by_environment:
        monkeypatch.setenv("PULSE_SPOOL", str(tmp_path))
    made = folders_of_temporary_files(monkeypatch)
    with pulse_registry.open(
        f"memory://{tmp_path.name}", run="run", compute=pulse_registry.ComputeOptions(backend="reference"), **given
    ) as registry:
        compacted(registry)
    assert {*made} == {tmp_path}


@pytest.mark.parametrize("module", [local_copy, temp_patch, download])
def test_without_one_what_a_compactor_and_a_keyframe_need_goes_into_the_temporary_folder(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = folders_of_temporary_files(monkeypatch)
    monkeypatch.setattr(module, "temporary_folder", lambda: tmp_path)
    if module is download:
        download.SpoolFile(ObjectRef(key="k", size=8, blake3="0" * 64), None).close()
    else:
        with quick(DictStore()) as registry:
            compacted(registry)
    assert made.count(tmp_path) == 1


def test_a_spool_that_is_no_folder_is_refused(tmp_path: Path):
    with pytest.raises(pulse_registry.InvalidArgument, match="spool"):
        pulse_registry.open(str(tmp_path), run="run", pull=pulse_registry.PullOptions(spool=tmp_path / "none"))
