"""A folder that others reload from, and a command: each holds a whole version, or is tried again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pulse_registry.errors import CorruptObject, InvalidArgument
from pulse_registry.follow import Changed, CommandEngine, EngineFailed, Failed, FolderEngine, Follower, Pace
from pulse_registry.registry import Registry
from tests.support.checkpoints import Tensors, bf16_model, bits, held, step_of, version_of
from tests.support.clock import Clock
from tests.support.records import DictStore
from tests.support.registries import quick

NOTE = "import json, os, sys; open(sys.argv[1], 'a').write(json.dumps([sys.argv[2:], os.environ['PULSE_VERSION'], \
os.environ.get('PULSE_FOLDER'), os.environ.get('PULSE_TOKEN')]) + '\\n')"


def states() -> list[Tensors]:
    states = [bf16_model(cells=3000)]
    for step in range(2):
        states.append(step_of(states[-1], step))
    return states


@pytest.fixture
def store() -> DictStore:
    store = DictStore()
    with quick(store) as trainer:
        for step, state in enumerate(states()):
            trainer.push(step, state)
    return store


def brought(registry: Registry, engine: FolderEngine | CommandEngine, version: int) -> list[Changed | Failed]:
    told: list[Changed | Failed] = []
    clock = Clock()

    def wait(after: int, seconds: float) -> None:
        follower.stop()

    follower = Follower(registry, engine, Pace(version), told.append, clock=clock, sleep=clock.sleep, wait=wait)
    follower.run()
    return told


def test_a_folder_becomes_each_version_and_is_looked_at_no_more_than_it_must(store: DictStore, tmp_path: Path) -> None:
    engine, registry = FolderEngine(quick(store), tmp_path / "out"), quick(store)
    assert engine.version() is None
    for version in (0, 2, 1):
        (told,) = brought(registry, engine, version)
        assert isinstance(told, Changed)
        assert (told.version, told.pause_s) == (version, None)
        assert held(tmp_path / "out") == bits(states()[version])
    assert brought(registry, engine, 1) == []
    index = tmp_path / "out" / "model.safetensors.index.json"
    index.write_bytes(index.read_bytes() + b" ")
    assert engine.version() is None  # somebody else was at it
    assert len(brought(registry, engine, 1)) == 1
    assert engine.version() == 1


def test_a_folder_holds_what_it_held_where_a_version_can_not_be_had(store: DictStore, tmp_path: Path) -> None:
    registry = quick(store)
    engine = FolderEngine(registry, tmp_path / "out")
    brought(registry, engine, 1)
    key = next(key for key in store.list("run/objects/patch/000000000001-"))
    whole = store.get(key)
    store.put(key, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptObject):
        engine.stage(2)
    assert (engine.version(), version_of(tmp_path / "out")) == (1, 1)
    store.put(key, whole)
    assert len(brought(registry, engine, 2)) == 1


def test_a_command_is_called_with_the_version_and_without_our_token(
    store: DictStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSE_TOKEN", "sesame")
    notes = tmp_path / "notes"
    command = f'{sys.executable} -c "{NOTE}" {notes} --to={{version}}'
    engine = CommandEngine(command)
    for version in (2, 0):
        (told,) = brought(quick(store), engine, version)
        assert isinstance(told, Changed)
    out = str(tmp_path / "out")
    brought(quick(store), FolderEngine(quick(store), Path(out), CommandEngine(command, folder=out)), 1)
    assert [json.loads(line) for line in notes.read_text().splitlines()] == [
        [["--to=2"], "2", None, None],
        [["--to=0"], "0", None, None],
        [["--to=1"], "1", out, None],
    ]


def test_a_command_that_fails_is_called_again_and_its_last_words_are_told(store: DictStore, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    script = f"test -e {flag} || {{ touch {flag}; echo no engine here >&2; exit 3; }}"
    out = tmp_path / "out"
    engine = FolderEngine(quick(store), out, CommandEngine(f"sh -c '{script}'", folder=str(out)))
    failed, changed = brought(quick(store), engine, 2)
    assert isinstance(failed, Failed)
    assert failed.message == "exec sh: it ended with 3: no engine here"
    assert isinstance(changed, Changed)
    assert (engine.version(), version_of(out)) == (2, 2)


@pytest.mark.parametrize(("command", "why"), [("sleep 3600", "was killed"), ("/no/such/command", "can't be started")])
def test_a_command_that_hangs_or_is_not_there_is_a_failure(command: str, why: str) -> None:
    with pytest.raises(EngineFailed, match=why):
        CommandEngine(command, timeout_s=0.05).apply(1)


@pytest.mark.parametrize("command", ["", "  ", "say 'what"])
def test_what_is_no_command_is_refused(command: str) -> None:
    with pytest.raises(InvalidArgument):
        CommandEngine(command)
