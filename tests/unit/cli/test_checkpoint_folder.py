"""The folder that a pull writes: what it refuses, what it leaves alone, and that failures leave it as it was."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import pulse_registry
import pulse_registry.cli.pull
from pulse_registry.checkpoint import pull_checkpoint
from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.format.keyframe import INDEX_NAME
from pulse_registry.process.private_files import hold_lock, release_lock
from tests.support.checkpoints import bf16_model, bits, held, save, surplus, version_of
from tests.support.command_line import Pulse, Run
from tests.support.waiting import HANG_S


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


@pytest.mark.parametrize("name", ["model.safetensors", "model-00001-of-00002.safetensors"])
def test_a_folder_with_a_model_of_others_is_refused(pulse: Pulse, run: Run, tmp_path: Path, name: str) -> None:
    file = save(tmp_path / "out" / name, bf16_model())
    before = file.read_bytes()
    answer = pulse("pull", "--out", tmp_path / "out")
    assert answer.code == 2
    assert name in answer.err
    assert file.read_bytes() == before
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


@pytest.mark.parametrize("index", [b'{"weight_map":{}}', b"not JSON", b"[]", b'{"metadata":{"pulse":{"version":1}}}'])
def test_an_index_of_others_is_refused(pulse: Pulse, run: Run, tmp_path: Path, index: bytes) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / INDEX_NAME).write_bytes(index)
    assert pulse("pull", "--out", tmp_path / "out", "--replace").code == 2
    assert (tmp_path / "out" / INDEX_NAME).read_bytes() == index


def test_a_model_that_would_hide_the_pulled_one_is_refused(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    assert pulse("pull", "--out", tmp_path / "out").code == 0
    save(tmp_path / "out" / "model.safetensors", bf16_model())
    assert pulse("pull", "--out", tmp_path / "out").code == 2


def test_a_file_in_place_of_the_folder_is_refused(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("here")
    assert pulse("pull", "--out", tmp_path / "out").code == 2


def test_a_folder_of_another_run_is_refused(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert pulse("pull", "--out", out).code == 0
    file = save(tmp_path / "m.safetensors", bf16_model(5))
    for root, name in ((run.root, "other"), (tmp_path / "elsewhere", run.name)):
        at = ("--root", root, "--run", name)
        assert pulse("push", "--step", 1, *at, file).code == 0
        answer = pulse("pull", "--out", out, *at)
        assert answer.code == 2
        assert "another" in answer.err
    assert held(out) == bits(run.states[4])
    assert pulse("pull", "--out", out, *at, "--replace").code == 0
    assert held(out) == bits(bf16_model(5))


def test_other_files_are_left_alone(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    others = {"config.json": b"{}", "tokenizer.json": b"[]", "adapter.safetensors": b"x", "pulse.txt": b"."}
    for name, data in others.items():
        (out / name).write_bytes(data)
    for version in (0, 3, 1):
        assert pulse("pull", "--out", out, "--version", version).code == 0
    assert surplus(out) == others.keys()
    assert all((out / name).read_bytes() == data for name, data in others.items())


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_shards_that_are_not_what_the_folder_says_are_refused_unless_fresh(
    pulse: Pulse, run: Run, tmp_path: Path, damage: str
) -> None:
    out = tmp_path / "out"
    assert pulse("pull", "--out", out, "--version", 2).code == 0
    (shard,) = shards(out)
    data = bytearray(shard.read_bytes())
    if damage == "remove":
        shard.unlink()
    else:
        data[-9] ^= 1
        shard.write_bytes(data if damage == "flip" else data[:-100])
    for version in (2, 4):
        answer = pulse("pull", "--out", out, "--version", version, "--json")
        assert (answer.code, answer.json["error"]) == (5, "BaseMismatch")
        assert str(out) in answer.json["message"]
        assert version_of(out) == 2
    assert pulse("pull", "--out", out, "--replace").code == 0
    assert held(out) == bits(run.states[4])
    assert surplus(out) == set()


def test_the_version_that_is_there_is_not_written_again(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert pulse("pull", "--out", out).code == 0
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir() if path.name != ".pulse.lock"}
    assert pulse("pull", "--out", out).code == 0
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir() if path.name != ".pulse.lock"} == before


def test_a_second_pull_into_a_folder_at_the_same_time_is_a_conflict(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    lock = hold_lock(out / ".pulse.lock", 0.0)
    assert lock is not None
    with (
        pulse_registry.open(str(run.root), run=run.name) as registry,
        pytest.raises(pulse_registry.Conflict, match="another pull"),
    ):
        pull_checkpoint(registry, into=out, lock_seconds=0.05)
    release_lock(lock)
    assert shards(out) == []


def test_pulls_of_two_threads_into_a_folder_come_one_after_the_other(run: Run, tmp_path: Path) -> None:
    def pull(version: int) -> None:
        with pulse_registry.open(str(run.root), run=run.name) as registry:
            pull_checkpoint(registry, version, into=tmp_path / "out", lock_seconds=HANG_S)

    threads = [threading.Thread(target=pull, args=(version,)) for version in (1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = version_of(tmp_path / "out")
    assert found in (1, 4)
    assert held(tmp_path / "out") == bits(run.states[found])
    assert surplus(tmp_path / "out") == set()


class FullDisk(FileOperations):
    """Has no space left at one operation."""

    def __init__(self, operation: str) -> None:
        self._operation = operation

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "_operation"):

            def full(*arguments: Any) -> None:
                if name in ("copy", "create", "write"):
                    arguments[-1 if name == "copy" else 0].write_bytes(b"half")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            return full
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("operation", ["create", "copy", "write", "sync", "replace"])
def test_a_full_disk_leaves_the_folder_as_it_was(
    pulse: Pulse, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    out = tmp_path / "out"
    assert pulse("pull", "--out", out, "--version", 1).code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    options = ("--replace",) if operation == "create" else ()
    with monkeypatch.context() as patched:
        patched.setattr(pulse_registry.cli.pull, "MeteredFiles", lambda _: FullDisk(operation))
        answer = pulse("pull", "--out", out, *options, "--json")
    assert (answer.code, answer.json["error"]) == (7, "StoreUnavailable")
    assert "the disk is full" in answer.json["message"]
    assert {path.name: path.read_bytes() for path in out.iterdir()} | {".pulse.lock": b""} == before | {
        ".pulse.lock": b""
    }
    assert pulse("pull", "--out", out).code == 0
    assert held(out) == bits(run.states[4])


def test_old_shards_that_cannot_be_removed_do_not_fail_a_pull(
    pulse: Pulse, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert pulse("pull", "--out", out, "--version", 1).code == 0
    with monkeypatch.context() as patched:
        patched.setattr(pulse_registry.cli.pull, "MeteredFiles", lambda _: FullDisk("remove"))
        assert pulse("pull", "--out", out).code == 0
    assert held(out) == bits(run.states[4])
    assert len(surplus(out)) == 1
    assert pulse("pull", "--out", out).code == 0
    assert surplus(out) == set()


def test_the_index_says_which_version_of_which_run_it_is(pulse: Pulse, run: Run, tmp_path: Path) -> None:
    assert pulse("pull", "--out", tmp_path / "out", "--version", 3).code == 0
    metadata = json.loads((tmp_path / "out" / INDEX_NAME).read_bytes())["metadata"]
    entry = pulse("log", "--json").json[3]
    assert metadata["pulse"].items() >= {"run": "math", "version": 3, "digest": entry["digest"]}.items()
    assert metadata["total_size"] == sum(tensor.nbytes for tensor in run.states[3].values())
