"""SIGKILL at any step of a compactor, a collector, an export, an import: the next one goes on, and nothing is wrong."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pulse_registry.interop.exporting import WORKSHOP
from pulse_registry.store import FileStore
from tests.scenarios.soak import killing
from tests.support.checkpoints import bf16_model, save, step_of
from tests.support.registries import check_store, quick, restored, state_of
from tests.support.waiting import HANG_S
from tests.unit.interop import reference

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
STATES = list(itertools.accumulate(range(1, 7), step_of, initial=bf16_model(cells=4_000)))
BITS = [reference.state_of(state) for state in STATES]


class Killer:
    """A process that works and kills itself."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", killing.__name__]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, step: int, work: str, *, lines: bool = False, **arguments: Any) -> str:
        """Do a piece of work that dies at a step, or at none (0); ``lines``: steps are lines of Python."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        said = {name: str(value) if isinstance(value, Path) else value for name, value in arguments.items()}
        print(json.dumps([step, lines, work, said]), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, "the process has gone"
        return line.strip()


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    killer = Killer()
    yield killer
    killer.process.communicate(timeout=HANG_S)


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of seven versions in files."""
    root = tmp_path_factory.mktemp("pushed") / "root"
    with quick(FileStore(root), retries=True, keyframe_every=3) as registry:
        for number, state in enumerate(STATES):
            registry.push(number, state)
    return root


@dataclass(frozen=True, slots=True)
class Times:
    """How often to kill: ``number`` times, or (None) at every step."""

    number: int | None
    lines: bool = False


@dataclass
class Killed:
    """One piece of work, killed at some of its steps, each time on a fresh copy of a run."""

    killer: Killer
    pushed: Path
    folder: Path
    root: Path = field(init=False)

    def __post_init__(self) -> None:
        self.root = self.folder / "root"

    def fresh(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if self.pushed.exists():
            shutil.copytree(self.pushed, self.root)

    def each(self, times: Times, work: str, check: Callable[[int], None], **arguments: Any) -> None:
        """Kill at every step, or at some of them, spread evenly; look after each, and after it was done again."""
        lines = times.lines
        self.fresh()
        word, _, steps = self.killer(0, work, lines=lines, root=self.root, **arguments).partition(" ")
        assert word == "done"
        assert int(steps) > 20
        check(0)
        killed = 0
        stride = 1 if times.number is None else max(1, int(steps) // times.number)
        for step in range(1 + stride // 2, int(steps) + 1, stride):
            self.fresh()
            word = self.killer(step, work, lines=lines, root=self.root, **arguments)
            assert word == "killed" or (lines and word.startswith("done")), step
            killed += word == "killed"
            check(step)
            assert self.killer(0, work, root=self.root, **arguments).startswith("done"), step
            check(0)
        assert killed > 2  # threads make no fixed number of lines, but about as many each time

    @property
    def store(self) -> FileStore:
        return FileStore(self.root)


@pytest.fixture
def killed(killer: Killer, pushed: Path, tmp_path: Path) -> Killed:
    return Killed(killer, pushed, tmp_path / "work")


TIMES = pytest.mark.parametrize(
    "times",
    [
        Times(4),
        pytest.param(Times(None), marks=pytest.mark.sweep),
        pytest.param(Times(60, lines=True), marks=pytest.mark.sweep),
    ],
    ids=["some", "every", "lines"],
)


@TIMES
def test_a_compactor_that_is_killed_costs_nothing_and_the_next_one_ends_its_work(killed: Killed, times: Times) -> None:
    merged: set[tuple[int, int]] = set()

    def look(step: int) -> None:
        orphans = check_store(killed.store)
        state = state_of(killed.store)
        found = {(patch.base, patch.target) for patch in state.patches}
        if not step:
            merged.update(found)
            assert found == merged
            with quick(killed.store) as registry:
                compactor = registry.compactor()
                assert not compactor.pending()
                compactor.close()
        assert len(orphans) <= 1, "what was on its way"
        wanted = range(len(STATES)) if not step else (3, 6)
        assert all(restored(killed.store, STATES[0], number) == BITS[number] for number in wanted)

    killed.each(times, "compact", look)
    assert (0, 4) in merged


@TIMES
def test_a_collector_that_is_killed_takes_nothing_that_lives_and_the_next_one_ends_its_work(
    killed: Killed, times: Times
) -> None:
    kept: list[int] = []

    def look(step: int) -> None:
        orphans = check_store(killed.store)
        state = state_of(killed.store)
        live = [entry.version for entry in state.versions if not state.is_retired(entry.version)]
        if not kept:
            kept.extend(live)
            assert 0 < kept[0] <= 5, "what the last two versions need is kept too"
        assert live in (kept, list(range(7)))
        if not step:
            assert live == kept
            assert orphans == set()
            assert not state.retired_keys
        assert all(restored(killed.store, STATES[0], number) == BITS[number] for number in live[-2:])

    killed.each(times, "gc", look)


@TIMES
def test_an_export_that_is_killed_leaves_a_whole_folder_or_none(killed: Killed, times: Times) -> None:
    out = killed.folder / "out"
    seen = set()

    def look(step: int) -> None:
        seen.add(out.exists())
        if out.exists():
            assert reference.read_delta(out, BITS[1]) == BITS[6]
            shutil.rmtree(out)
        if not step:
            assert sorted(path.name for path in killed.folder.iterdir()) == ["root"]

    killed.each(times, "export", look, out=out, base=1)
    assert False in seen
    assert True in seen or times.number is not None


@TIMES
def test_a_chain_that_is_killed_has_whole_folders_and_is_gone_on_with(killed: Killed, times: Times) -> None:
    out = killed.folder / "out"

    def look(step: int) -> None:
        folders = sorted(path for path in out.iterdir() if path.name != WORKSHOP) if out.exists() else []
        assert [path.name for path in folders] == [f"weight_v{number:06d}" for number in range(len(folders))]
        for number, folder in enumerate(folders[1:], 1):
            assert reference.read_delta(folder, BITS[number - 1]) == BITS[number]
        if not step:
            assert len(folders) == len(STATES)
            assert not (out / WORKSHOP).exists()

    killed.each(times, "export", look, out=out, base=None)


@TIMES
def test_an_import_that_is_killed_leaves_whole_versions_and_is_gone_on_with(
    killer: Killer, times: Times, tmp_path: Path
) -> None:
    chain = tmp_path / "chain"
    save(chain / "weight_v000000" / "model.safetensors", STATES[0])
    for number in range(1, 4):
        folder, names = chain / f"weight_v{number:06d}", {"version": number, "base": number - 1}
        reference.write_delta(folder, BITS[number - 1], BITS[number], **names)
    killed = Killed(killer, tmp_path / "nothing", tmp_path / "work")
    seen = set()

    def look(step: int) -> None:
        check_store(killed.store)
        versions = len(state_of(killed.store).versions)
        seen.add(versions)
        wanted = range(versions) if not step else range(max(0, versions - 1), versions)
        assert all(restored(killed.store, STATES[0], number) == BITS[number] for number in wanted)
        if not step:
            assert versions == 4

    killed.each(times, "import", look, folder=chain)
    assert {4} < seen
