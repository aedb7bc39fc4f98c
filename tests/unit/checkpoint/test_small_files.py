"""A pulled folder has the run's small files: those of its version, and never in place of others'."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from pulse_registry.checkpoint import CheckpointPull, pull_checkpoint
from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.errors import InvalidArgument, StoreUnavailable
from pulse_registry.push.files import Files
from pulse_registry.registry import Registry
from tests.support.checkpoints import version_of
from tests.support.records import DictStore
from tests.support.registries import bits, change, copy_of, quick, small_model

FIRST = {"config.json": b'{"a":1}', "tokenizer.json": b"{}", "merges.txt": b""}
SECOND = {"config.json": b'{"a":2}', "chat_template.jinja": b"{{ x }}", "merges.txt": b""}
OURS = {".pulse.lock", ".pulse-files.json", "model.safetensors.index.json"}


def folder_of(path: Path, contents: Mapping[str, bytes]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (path / name).write_bytes(data)
    return path


def small_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder that are neither shards nor what a pull keeps for itself."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {name: data for name, data in files.items() if name not in OURS and "-pulse-v" not in name}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """Return a run of four versions: without files, with the first ones twice, and with the second ones."""
    model = small_model()
    with quick(DictStore(), keyframe_share=1e9) as made:
        made.push(0, model)
        for step, files in enumerate((FIRST, None, SECOND), 1):
            change(model, step)
            made.push(step, model, files=None if files is None else folder_of(tmp_path / f"source-{step}", files))
        yield made


@pytest.mark.slow
def test_a_folder_goes_forth_and_back_with_its_files(registry: Registry, tmp_path: Path) -> None:
    out, files = tmp_path / "out", [{}, FIRST, FIRST, SECOND]
    for version in (0, 3, 1, 1, 2, 0, 0, 3):
        result = pull_checkpoint(registry, version, into=out)
        assert version_of(out) == result.version == version
        assert small_files(out) == files[version]
        assert result.files == tuple(sorted(files[version]))
        assert (result.kept, result.left_out) == ((), ())


def test_a_folder_without_files_has_no_more_than_before(registry: Registry, tmp_path: Path) -> None:
    pull_checkpoint(registry, 0, into=tmp_path / "out")
    assert not (tmp_path / "out" / ".pulse-files.json").exists()


def test_what_others_have_put_there_stays(registry: Registry, tmp_path: Path, caplog: Any) -> None:
    mine = {"config.json": b"mine", "notes.txt": b"notes", "merges.txt": FIRST["merges.txt"]}
    out = folder_of(tmp_path / "out", mine)
    (tmp_path / "target").write_bytes(b"target")
    (out / "tokenizer.json").symlink_to(tmp_path / "target")
    for version, kept in ((1, "tokenizer.json"), (3, "chat_template.jinja")):
        strange = tmp_path / f"strange-{version}"
        (strange / "config.json").mkdir(parents=True)
        os.mkfifo(strange / kept)
        assert pull_checkpoint(registry, version, into=strange).kept == tuple(sorted(("config.json", kept)))
    result = pull_checkpoint(registry, 1, into=out)
    assert result.kept == ("config.json", "tokenizer.json")
    assert result.files == ("merges.txt",)
    assert "config.json was put there by somebody else" in caplog.text
    assert small_files(out) == mine | {"tokenizer.json": b"target"}
    pull_checkpoint(registry, 3, into=out)
    assert small_files(out) == mine | {"tokenizer.json": b"target"} | {"chat_template.jinja": b"{{ x }}"}
    (out / "chat_template.jinja").write_bytes(b"changed by hand")
    result = pull_checkpoint(registry, 0, into=out)
    assert result.kept == ()
    left = {name: data for name, data in mine.items() if name != "merges.txt"}
    assert small_files(out) == left | {"tokenizer.json": b"target", "chat_template.jinja": b"changed by hand"}
    assert (tmp_path / "target").read_bytes() == b"target"


def test_a_record_of_files_that_is_damaged_or_hostile_gives_nothing_away(registry: Registry, tmp_path: Path) -> None:
    """Whatever it says, only plain names in the folder can be meant, and only bytes that fit their hashes."""
    (tmp_path / "victim").write_bytes(b"victim")
    for text in ("no JSON", "[]", '{"../victim":["x"]}', '{"config.json":7}', '{"config.json":[7,[]]}', "{" * 10_000):
        out = tmp_path / f"out-{abs(hash(text))}"
        folder_of(out, {".pulse-files.json": text.encode(), "config.json": b"mine"})
        assert pull_checkpoint(registry, 1, into=out).kept == ("config.json",)
        assert (out / "config.json").read_bytes() == b"mine"
    assert (tmp_path / "victim").read_bytes() == b"victim"
    for number, make in enumerate((os.mkfifo, os.mkdir, lambda path: path.symlink_to(tmp_path / "victim"))):
        out = tmp_path / f"strange-{number}"
        out.mkdir()
        make(out / ".pulse-files.json")
        if number == 1:
            with pytest.raises(StoreUnavailable):
                pull_checkpoint(registry, 1, into=out)
            continue
        pull_checkpoint(registry, 1, into=out)
        assert small_files(out) == FIRST
    assert (tmp_path / "victim").read_bytes() == b"victim"


def test_code_is_written_only_if_it_is_asked_for(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "source", FIRST | {"modeling_x.py": b"import os", "run.sh": b"x"})
    out = tmp_path / "out"
    with quick(DictStore()) as registry:
        registry.push(0, small_model(), files=Files(source, also=["modeling_x.py", "run.sh"]))
        result = pull_checkpoint(registry, into=out)
        assert small_files(out) == FIRST
        assert result.left_out == ("modeling_x.py", "run.sh")
        result = pull_checkpoint(registry, into=out, also=["modeling_x.py"])
        assert small_files(out) == FIRST | {"modeling_x.py": b"import os"}
        assert result.left_out == ("run.sh",)
        assert os.stat(out / "modeling_x.py").st_mode & 0o111 == 0
        pull_checkpoint(registry, into=out)
        assert small_files(out) == FIRST
        with pytest.raises(InvalidArgument, match=r"carries no file 'other\.py'; it has: config\.json"):
            pull_checkpoint(registry, into=out, also=["other.py"])


def test_an_adapter_has_its_weights_where_engines_look_for_them(tmp_path: Path) -> None:
    model, out = small_model(), tmp_path / "out"
    model = {"base_model.model.q.lora_A.weight": model["b.bias"], "base_model.model.q.lora_B.weight": model["c.count"]}
    source = folder_of(tmp_path / "source", {"adapter_config.json": b'{"r":8}'})
    states = []
    with quick(DictStore()) as registry:
        for step in range(2):
            change(model, step)
            registry.push(step, model, files=source)
            states.append(copy_of(model))
        for version in (0, 1, 0):
            pull_checkpoint(registry, version, into=out)
            assert small_files(out).keys() == {"adapter_config.json", "adapter_model.safetensors"}
            assert bits(load_file(out / "adapter_model.safetensors")) == bits(states[version])


class Failing(FileOperations):
    """Fails the n-th call that changes something, once, as a full disk; or dies there, and does nothing any more."""

    def __init__(self, nth: int, *, dies: bool) -> None:
        self.left, self.dies, self.failed = nth, dies, False

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0 or (self.failed and self.dies):
            self.failed = True
            raise Killed if self.dies else OSError(errno.ENOSPC, "full")

    def write(self, path: Path, data: bytes) -> None:
        self._step()
        super().write(path, data)

    def replace(self, source: Path, target: Path) -> None:
        self._step()
        super().replace(source, target)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)

    def sync_folder(self, folder: Path) -> None:
        self._step()

    def sync(self, path: Path) -> None:
        """Nothing here loses power."""


class Killed(BaseException):
    """Ends a pull as a kill does: nothing after it is done."""


def each_step(tmp_path: Path, pull: Callable[[Path, FileOperations], CheckpointPull], *, dies: bool) -> Iterator[Path]:
    """Yield folders in which a pull ended at its first, second, ... step, until one comes to its end."""
    for nth in range(1, 60):
        out, files = tmp_path / f"out-{dies}-{nth}", Failing(nth, dies=dies)
        try:
            pull(out, files)
        except (StoreUnavailable, Killed):
            yield out
            continue
        if not files.failed:
            assert nth > 10
            return
        yield out
    raise AssertionError("it never came to its end")


@pytest.mark.slow
def test_a_pull_that_fails_leaves_weights_and_files_as_they_were(registry: Registry, tmp_path: Path) -> None:
    def pull(out: Path, files: FileOperations) -> CheckpointPull:
        pull_checkpoint(registry, 1, into=out)
        return pull_checkpoint(registry, 3, into=out, files=files)

    for out in each_step(tmp_path, pull, dies=False):
        now = version_of(out)
        assert small_files(out) == {1: FIRST, 3: SECOND}[now or 0] | {
            name: data for name, data in small_files(out).items() if name.startswith(".pulse-")
        }
        pull_checkpoint(registry, 3, into=out)
        assert small_files(out) == SECOND


def test_what_a_killed_pull_left_is_made_right_by_the_next(registry: Registry, tmp_path: Path) -> None:
    """A first pull never shows an index before its files are there; any next pull knows what is ours."""

    def pull(out: Path, files: FileOperations) -> CheckpointPull:
        return pull_checkpoint(registry, 1, into=out, files=files)

    for number, out in enumerate(each_step(tmp_path, pull, dies=True)):
        if version_of(out) is not None:
            assert small_files(out).items() >= FIRST.items()
        version = (3, 1)[number % 2]
        assert pull_checkpoint(registry, version, into=out).kept == ()
        assert small_files(out) == {3: SECOND, 1: FIRST}[version]
        assert json.loads((out / ".pulse-files.json").read_bytes()).keys() == small_files(out).keys()
