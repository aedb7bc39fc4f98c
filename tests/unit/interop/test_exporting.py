"""What is exported is the common delta format, bit for bit, and shows up whole or not at all."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.errors import (
    AlreadyExists,
    Conflict,
    CorruptObject,
    InvalidArgument,
    LayoutMismatch,
    NotFound,
    PulseError,
    StoreUnavailable,
)
from pulse_registry.interop import Form, export_chain, export_delta, export_full, exporting
from pulse_registry.interop.checksum import Checksum
from pulse_registry.interop.delta_shards import DeltaShards
from pulse_registry.interop.frames import Encoding
from pulse_registry.interop.temp_files import Workshop
from pulse_registry.process.private_files import hold_lock, release_lock
from tests.support.records import DictStore
from tests.support.registries import quick
from tests.unit.interop import reference
from tests.unit.interop.conftest import Run

FORMS = [Form(encoding, checksum) for encoding in Encoding for checksum in Checksum]


def index_of(folder: Path) -> dict[str, dict[str, object]]:
    index: dict[str, dict[str, object]] = json.loads((folder / reference.INDEX).read_bytes())
    return index


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form.encoding}, {form.checksum}")
def test_a_delta_between_any_two_versions_reads_as_the_reference_reads_it(run: Run, form: Form, tmp_path: Path) -> None:
    every = form == Form()
    for base, target in itertools.product(range(4), range(4)) if every else [(0, 2)]:
        folder = tmp_path / f"{base}-{target}"
        made = export_delta(run.registry, folder, base, target, form=form)
        assert reference.read_delta(folder, run.states[base]) == run.states[target]
        assert index_of(folder)["metadata"] == {
            "version": f"{target:06d}",
            "base_version": f"{base:06d}",
            "delta_encoding": form.encoding,
            "compression_format": "zstd",
            "checksum_format": form.checksum,
        }
        changed = [name for name, data in run.states[target].items() if run.states[base][name] != data]
        assert sorted(index_of(folder)["weight_map"]) == sorted(changed)
        assert (made.version, made.base, made.tensors) == (target, base, len(changed))
        assert made.nbytes == sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert len(list(tmp_path.iterdir())) == (16 if every else 1)


def test_a_delta_of_nothing_has_an_index_and_no_shard(run: Run, tmp_path: Path) -> None:
    export_delta(run.registry, tmp_path / "same", 2, 3)
    assert [path.name for path in (tmp_path / "same").iterdir()] == [reference.INDEX]
    assert index_of(tmp_path / "same")["weight_map"] == {}


@pytest.mark.parametrize("checksum", Checksum)
def test_a_whole_version_is_a_checkpoint_with_the_checksum_of_each_tensor(
    run: Run, checksum: Checksum, tmp_path: Path
) -> None:
    folder = tmp_path / "whole"
    made = export_full(run.registry, folder, 1, form=Form(checksum=checksum))
    shard = folder / "model-00001-of-00001.safetensors"
    with safe_open(shard, framework="np") as file:
        about = file.metadata()
    tensors = {name: array.tobytes() for name, array in load_file(shard).items()}
    assert tensors == run.states[1]
    assert about == {"format": "pt", **{name: reference.CHECKSUMS[checksum](data) for name, data in tensors.items()}}
    assert index_of(folder)["metadata"] == {
        "version": "000001",
        "checksum_format": checksum,
        "total_size": sum(map(len, tensors.values())),
    }
    assert (made.base, made.tensors, made.nbytes) == (None, len(tensors), shard.stat().st_size)


def test_a_chain_has_a_folder_of_each_version_and_the_first_is_whole(run: Run, tmp_path: Path) -> None:
    made = list(export_chain(run.registry, tmp_path))
    assert [(one.folder.name, one.base) for one in made] == [
        ("weight_v000000", None),
        ("weight_v000001", 0),
        ("weight_v000002", 1),
        ("weight_v000003", 2),
    ]
    state = {name: array.tobytes() for name, array in load_file(next(made[0].folder.glob("*.safetensors"))).items()}
    for number, one in enumerate(made[1:], 1):
        state = reference.read_delta(one.folder, state)
        assert state == run.states[number]
    assert sorted(path.name for path in tmp_path.iterdir()) == [one.folder.name for one in made]


def test_a_chain_from_a_version_begins_after_it_and_ends_where_it_is_told(run: Run, tmp_path: Path) -> None:
    made = list(export_chain(run.registry, tmp_path, 1, 2))
    assert [(one.version, one.base) for one in made] == [(2, 1)]
    assert reference.read_delta(tmp_path / "weight_v000002", run.states[1]) == run.states[2]


def test_a_chain_that_was_cut_off_or_has_grown_is_gone_on_with(run: Run, tmp_path: Path) -> None:
    list(export_chain(run.registry, tmp_path, version=1))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    made = list(export_chain(run.registry, tmp_path))
    assert [one.version for one in made] == [2, 3]
    assert reference.read_delta(tmp_path / "weight_v000002", run.states[1]) == run.states[2]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert list(export_chain(run.registry, tmp_path)) == []


def test_a_version_of_another_layout_is_whole_in_a_chain_and_no_delta_by_itself(run: Run, tmp_path: Path) -> None:
    run.registry.push(4, {"other": np.arange(9, dtype=np.uint16)})
    made = list(export_chain(run.registry, tmp_path / "chain", 2))
    assert [(one.version, one.base) for one in made] == [(3, 2), (4, None)]
    with pytest.raises(LayoutMismatch, match="export version 4 whole"):
        export_delta(run.registry, tmp_path / "delta", 3, 4)
    assert not (tmp_path / "delta").exists()


def test_a_chain_goes_forwards(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="older than 2"):
        list(export_chain(run.registry, tmp_path, 2, 1))


def test_tied_names_are_stored_once(tmp_path: Path) -> None:
    weight = np.arange(20, dtype=np.uint16)
    with quick(DictStore()) as registry:
        registry.push(0, {"embed": weight, "head": weight})
        weight[3] += 1
        registry.push(1, {"embed": weight, "head": weight})
        export_full(registry, tmp_path / "whole")
        export_delta(registry, tmp_path / "delta", 0)
    for folder in ("whole", "delta"):
        assert list(index_of(tmp_path / folder)["weight_map"]) == ["embed"]


def test_frames_are_cut_into_shards(tmp_path: Path) -> None:
    with DeltaShards(tmp_path, FileOperations(), shard_bytes=10) as shards:
        for number in range(5):
            shards.add(f"t{number}", bytes([number]) * 6, f"sum {number}")
        weight_map = shards.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(set(weight_map.values()))
    assert set(weight_map.values()) == {f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)}
    for name, shard in weight_map.items():
        with safe_open(tmp_path / shard, framework="np") as file:
            assert file.get_tensor(name).tolist() == [int(name[1])] * 6
            assert file.metadata()[name] == f"sum {name[1]}"


@pytest.mark.parametrize("what", ["a file", "a folder with a file in it", "a link to a folder"])
def test_what_is_there_already_is_left_alone(run: Run, what: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    if what == "a file":
        place.write_text("mine")
    elif what == "a link to a folder":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir()
        (place / "config.json").write_text("{}")
    for export in (lambda: export_full(run.registry, place), lambda: export_delta(run.registry, place, 0)):
        with pytest.raises(AlreadyExists, match="choose another folder"):
            export()
    assert not any(path.name.startswith(".") for path in tmp_path.iterdir())


def test_an_empty_folder_is_filled(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    export_delta(run.registry, tmp_path / "empty", 0, 1)
    assert reference.read_delta(tmp_path / "empty", run.states[0]) == run.states[1]


def test_another_export_to_the_same_folder_is_a_conflict(run: Run, tmp_path: Path) -> None:
    workshop = tmp_path / f".out{exporting.WORKSHOP}"
    workshop.mkdir()
    lock = hold_lock(workshop / ".lock", 0.0)
    assert lock is not None
    with pytest.raises(Conflict, match="another process"):
        export_delta(run.registry, tmp_path / "out", 0, 1)
    release_lock(lock)
    export_delta(run.registry, tmp_path / "out", 0, 1)
    assert not workshop.exists()


def test_those_that_come_while_another_export_leaves_are_in_conflict_at_most(tmp_path: Path) -> None:
    at_work = threading.Lock()

    def come_and_go(_: int) -> None:
        for _ in range(200):
            with suppress(Conflict), Workshop(tmp_path / "shop", FileOperations()):
                assert at_work.acquire(blocking=False)
                at_work.release()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(come_and_go, range(3)))
    assert not any(tmp_path.iterdir())


def test_a_file_where_an_export_would_work_is_told_and_stays(run: Run, tmp_path: Path) -> None:
    workshop = tmp_path / f".out{exporting.WORKSHOP}"
    workshop.write_text("mine")
    with pytest.raises(InvalidArgument, match=rf"{re.escape(workshop.name)} can't be used: Not a directory"):
        export_delta(run.registry, tmp_path / "out", 0, 1)
    assert workshop.read_text() == "mine"


@pytest.mark.skipif(sys.platform != "linux", reason="a folder in which none can be made, by root neither")
def test_a_folder_that_can_not_be_made_is_no_conflict(run: Run) -> None:
    with pytest.raises(InvalidArgument, match="can't be used: No such file or directory"):
        export_delta(run.registry, Path("/proc/none"), 0, 1)


def test_what_an_export_that_died_left_is_removed(run: Run, tmp_path: Path) -> None:
    workshop = tmp_path / f".out{exporting.WORKSHOP}"
    (workshop / "made").mkdir(parents=True)
    (workshop / "made" / "model-00007-of-00009.safetensors").write_bytes(b"half")
    export_delta(run.registry, tmp_path / "out", 0, 1)
    assert reference.read_delta(tmp_path / "out", run.states[0]) == run.states[1]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


class FailingFiles(FileOperations):
    """Fails the n-th operation, of those that write."""

    def __init__(self, nth: int, code: int) -> None:
        self.left, self.code = nth, code

    def _count(self, path: Path) -> None:
        self.left -= 1
        if not self.left:
            raise OSError(self.code, os.strerror(self.code), str(path))

    def create(self, path: Path, head: bytes, size: int) -> int:
        self._count(path)
        return super().create(path, head, size)

    def write(self, path: Path, data: bytes) -> None:
        self._count(path)
        super().write(path, data)

    def sync(self, path: Path) -> None:
        self._count(path)
        super().sync(path)

    def replace(self, source: Path, target: Path) -> None:
        self._count(target)
        super().replace(source, target)


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, StoreUnavailable), (errno.EACCES, InvalidArgument)])
def test_whatever_file_operation_fails_nothing_shows_up(
    run: Run, code: int, error: type[PulseError], tmp_path: Path
) -> None:
    for base in (None, 0):
        for nth in itertools.count(1):
            files = FailingFiles(nth, code)
            out = tmp_path / "out"
            try:
                if base is None:
                    export_full(run.registry, out, files=files)
                else:
                    export_delta(run.registry, out, base, files=files)
            except error:
                assert list(tmp_path.iterdir()) == []
                continue
            break
        assert nth > 3
        assert [path.name for path in tmp_path.iterdir()] == ["out"]
        for path in out.iterdir():
            path.unlink()
        out.rmdir()


@pytest.mark.parametrize("fault", ["gone", "damaged"])
def test_a_version_whose_objects_are_gone_or_damaged_leaves_nothing(run: Run, fault: str, tmp_path: Path) -> None:
    for key in [key for key in run.store.objects if "/objects/" in key and "/keyframe/000000000000-" not in key]:
        data = run.store.objects.pop(key)
        if fault == "damaged":
            run.store.objects[key] = data[:-1] + bytes([data[-1] ^ 1])
    with quick(run.store) as registry, pytest.raises((NotFound, CorruptObject)):
        export_delta(registry, tmp_path / "out", 0, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_version_that_is_not_there_is_told(run: Run, tmp_path: Path) -> None:
    for base, target in ((9, 1), (1, 9)):
        with pytest.raises(NotFound):
            export_delta(run.registry, tmp_path / "out", base, target)
    assert list(tmp_path.iterdir()) == []
