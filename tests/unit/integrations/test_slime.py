"""The hooks carry a trainer's delta folders through a run to an engine's host, where a plain reader reads them."""

from __future__ import annotations

import importlib
import shlex
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pulse_registry.errors import BaseMismatch, CorruptObject, Fenced, InvalidArgument, NotFound
from pulse_registry.integrations import slime
from pulse_registry.interop import import_folder
from pulse_registry.opening import open as open_run
from pulse_registry.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.results import PullResult, VersionName
from tests.docs.blocks import ROOT, blocks
from tests.docs.console import run_line
from tests.support.checkpoints import odd_model, save, step_of
from tests.unit.interop.reference import read_delta, state_of, write_delta

MODELS = [odd_model()]
for seed in (1, 2):
    MODELS.append(step_of(MODELS[-1], seed))
STATES = [state_of(model) for model in MODELS]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose version 0 is the checkpoint that training starts from."""
    monkeypatch.setenv("PULSE_ROOT", str(tmp_path / "registry"))
    monkeypatch.setenv("PULSE_RUN", "math")
    save(tmp_path / "start" / "model.safetensors", MODELS[0])
    with open_run(str(tmp_path / "registry"), run="math", push=PushOptions(dtype="keep")) as registry:
        assert [one.version for one in import_folder(registry, tmp_path / "start")] == [0]
    return tmp_path


def written(root: Path, number: int) -> Path:
    """Write a version as slime's trainer does."""
    names = {"version": f"{number:06d}", "base": f"{number - 1:06d}"}
    return write_delta(root / "out" / f"weight_v{number:06d}", STATES[number - 1], STATES[number], **names)


def test_an_engine_reads_on_its_own_host_what_the_trainer_wrote(root: Path) -> None:
    for number in (1, 2):
        folder = str(written(root, number))
        slime.post_write(None, folder, [])
        slime.post_write(None, folder, [])  # a trainer that restarts writes a version again
        slime.pre_read(str(root / "host"), number)
    state = STATES[0]
    for number in (1, 2):
        state = read_delta(root / "host" / f"weight_v{number:06d}", state)
        assert state == STATES[number]
    assert not (root / "host" / "weight_v000000").exists()


def test_the_trainer_fetches_the_newest_version_once_and_again_after_an_error(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulls: list[object] = []
    pull = Registry.pull

    def counted(registry: Registry, version: VersionName = "latest", **options: Any) -> PullResult:
        pulls.append(version)
        return pull(registry, version, **options)

    monkeypatch.setattr(Registry, "pull", counted)
    slime.post_write(None, str(written(root, 1)), [])
    slime.post_write(None, str(written(root, 2)), [])
    assert len(pulls) == 1
    again = {"version": "000003", "base": "000002"}
    damaged = write_delta(root / "out" / "weight_v000003", STATES[2], STATES[1], **again)
    for part in damaged.glob("*.safetensors"):
        part.write_bytes(part.read_bytes()[:-3])
    with pytest.raises(CorruptObject):
        slime.post_write(None, str(damaged), [])
    shutil.rmtree(damaged)
    slime.post_write(None, str(write_delta(damaged, STATES[2], STATES[1], **again)), [])
    assert len(pulls) == 2
    with open_run(root / "registry", run="math", create=False) as registry:
        assert [version.version for version in registry.versions()] == [0, 1, 2, 3]
    slime.pre_read(str(root / "host"), 3)
    assert read_delta(root / "host" / "weight_v000003", STATES[2]) == STATES[1]


def test_what_another_process_has_pushed_meanwhile_is_fetched(root: Path) -> None:
    slime.post_write(None, str(written(root, 1)), [])
    with open_run(root / "registry", run="math", push=PushOptions(dtype="keep")) as registry:
        list(import_folder(registry, written(root, 2)))
    again = write_delta(root / "out" / "weight_v000003", STATES[2], STATES[0], version="000003", base="000002")
    with pytest.raises(Fenced):
        slime.post_write(None, str(again), [])
    slime.post_write(None, str(again), [])
    slime.pre_read(str(root / "host"), 3)
    assert read_delta(root / "host" / "weight_v000003", STATES[2]) == STATES[0]


def test_an_engine_that_joins_late_gets_all_versions_up_to_its_own(root: Path) -> None:
    for number in (1, 2):
        slime.post_write(None, str(written(root, number)), [])
    slime.pre_read(str(root / "host"), 1)
    assert sorted(path.name for path in (root / "host").glob("weight_*")) == ["weight_v000001"]


def test_engines_of_one_host_write_its_folders_once(root: Path) -> None:
    for number in (1, 2):
        slime.post_write(None, str(written(root, number)), [])
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: slime.pre_read(str(root / "host"), 2), range(3)))
    assert read_delta(root / "host" / "weight_v000002", STATES[1]) == STATES[2]


def test_a_folder_whose_number_is_not_its_versions_is_told(root: Path) -> None:
    folder = write_delta(root / "out" / "weight_v000007", STATES[0], STATES[1], version="000007", base="000000")
    with pytest.raises(InvalidArgument, match=r"became version 1 of run 'math'.*ask for 000007"):
        slime.post_write(None, str(folder), [])


def test_a_delta_without_its_base_leaves_the_run_as_it_was(root: Path) -> None:
    with pytest.raises(BaseMismatch):
        slime.post_write(None, str(written(root, 2)), [])
    with open_run(str(root / "registry"), run="math") as registry:
        assert len(registry.versions()) == 1


def test_an_engine_is_told_of_a_version_that_is_not_there(root: Path) -> None:
    with pytest.raises(NotFound, match="has no version 5"):
        slime.pre_read(str(root / "host"), 5)


def test_hooks_say_which_variable_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULSE_RUN", raising=False)
    monkeypatch.setenv("PULSE_ROOT", "memory://slime")
    with pytest.raises(InvalidArgument, match="PULSE_RUN is not set"):
        slime.pre_read("-", 1)


def test_a_run_that_was_not_begun_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSE_ROOT", "memory://slime-none")
    monkeypatch.setenv("PULSE_RUN", "math")
    with pytest.raises(NotFound, match=r"begin it with the checkpoint.*pulse import --run math DIR"):
        slime.post_write(None, "-", [])


def test_the_lines_of_the_page_lead_from_the_trainer_to_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines for the shell are run; of those that start slime and SGLang, the options, as these read them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PULSE_ROOT", "")
    monkeypatch.setenv("PULSE_RUN", "")
    page = (ROOT / "docs" / "how-to" / "train-with-slime.md").read_text(encoding="utf-8")
    trainers, engines = (block.code for block in blocks(page) if block.language == "console")
    lines = trainers.replace("\\\n", "").replace("s3://bucket/policies", "registry").splitlines()
    export, begin, train = (line.removeprefix("$ ") for line in lines)
    save(tmp_path / "Qwen3-8B" / "model.safetensors", MODELS[0])
    for line in (export, begin):
        code, printed = run_line(line, tmp_path, monkeypatch)
        assert code == 0, printed
    written_to = Path(option(train, "--update-weight-disk-dir"))
    assert (option(train, "--update-weight-mode"), option(train, "--update-weight-transport")) == ("delta", "disk")
    post_write = hook(option(train, "--custom-update-weight-post-write-path"))
    pre_read = hook(option(engines.replace("\\\n", ""), "--custom-pull-weights-pre-read-hook"))
    state = STATES[0]
    for number in (1, 2):
        folder = written(tmp_path / written_to.name, number)
        post_write(args=None, version_dir=str(folder), rollout_engines=[])
        pre_read(source_dir=str(tmp_path / "host"), target_version=number)
        state = read_delta(tmp_path / "host" / f"weight_v{number:06d}", state)
        assert state == STATES[number]


def option(line: str, name: str) -> str:
    """Return what an option of a command says."""
    words = shlex.split(line)
    return words[words.index(name) + 1]


def hook(path: str) -> Callable[..., None]:
    """Return the function that a dotted path names, as slime and SGLang import it."""
    module, _, name = path.rpartition(".")
    found: Callable[..., None] = getattr(importlib.import_module(module), name)
    return found
