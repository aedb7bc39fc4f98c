"""An examination leaves nothing behind, however it ends, and touches nothing that is not its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pulse_registry.doctor import CHECKS, PREFIX, Examination, Plan, remove_leftovers
from pulse_registry.doctor.context import Context
from pulse_registry.doctor.examination import Check
from pulse_registry.doctor.finding import Finding
from pulse_registry.store import Body, FileStore, MemoryStore, Store, WrapperStore
from tests.support.waiting import HANG_S

PLAN = Plan(rounds=2, racers=4, samples=4, listed=20, large_bytes=10_000)
OTHERS = ("math/log/000000000000.json", "pulse-doctor-notes.txt", "pulse-doctor-a/log/000000000000.json")


def with_others(store: Store) -> Store:
    for key in OTHERS:
        store.put(key, b"mine")
    return store


def test_an_examination_writes_below_its_own_folder_only_and_removes_it() -> None:
    keys: set[str] = set()

    class Watched(WrapperStore):
        def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
            keys.add(key)
            super().put(key, data, if_absent=if_absent)

        def delete(self, key: str) -> None:
            keys.add(key)
            super().delete(key)

    store = with_others(MemoryStore("cleaning/own"))
    watched = Watched(store)
    with Examination(watched, plan=PLAN) as examination:
        examination.report()
    assert examination.folder.startswith(PREFIX)
    assert keys
    assert all(key.startswith(f"{examination.folder}/") for key in keys)
    assert [*store.list("")] == sorted(OTHERS)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a defect")])
def test_an_examination_that_breaks_off_clears_up(error: BaseException) -> None:
    store = with_others(MemoryStore(f"cleaning/{type(error).__name__}"))

    def breaks(inner: Store, context: Context) -> Finding:
        inner.put("half/done", b"x")
        raise error

    with pytest.raises(type(error)), Examination(store, plan=PLAN, checks=[Check(breaks)]) as examination:
        examination.report()
    assert [*store.list("")] == sorted(OTHERS)


def test_an_interrupt_in_a_race_leaves_no_thread_waiting_at_the_gate() -> None:
    before = threading.active_count()
    context = Context(MemoryStore("cleaning/gate"), MemoryStore("cleaning/gate"))

    class Interrupted(list[object]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            yield lambda: None
            raise KeyboardInterrupt

        def __len__(self) -> int:
            return 4

    with pytest.raises(KeyboardInterrupt):
        context.together(Interrupted())  # type: ignore[arg-type]
    assert threading.active_count() == before


def test_what_is_not_listed_is_removed_too() -> None:
    class Blind(WrapperStore):
        def list(self, prefix: str, after: str | None = None):  # type: ignore[no-untyped-def]
            return iter(())

    store = MemoryStore("cleaning/blind")
    with Examination(Blind(store), plan=PLAN) as examination:
        examination.report()
    assert [*store.list("")] == []


def test_what_killed_examinations_left_behind_is_removed_and_nothing_else(tmp_path: Path) -> None:
    store = with_others(FileStore(tmp_path))
    folders = tuple(f"{PREFIX}{number:016x}" for number in (1, 2))
    for folder in folders:
        store.put(f"{folder}/creation/race/1.json", b"x")
    assert remove_leftovers(store) == folders
    assert remove_leftovers(store) == ()
    assert [*store.list("")] == sorted(OTHERS)
    assert not any((tmp_path / folder).exists() for folder in folders)


KILLED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background, where it is ignored
from pulse_registry.cli import main
from pulse_registry.doctor import examination
from pulse_registry.doctor.examination import Check

def hangs(store, context):
    store.put("half/done", b"x")
    print("ready", flush=True)
    context.pause(3600)

examination.CHECKS = (Check(hangs),)
sys.exit(main(["doctor", "--root", sys.argv[1]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped_clears_up(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert [path.name.startswith(PREFIX) for path in tmp_path.iterdir()] == [True]
        child.send_signal(number)
        _, problem = child.communicate(timeout=HANG_S)
    assert child.returncode == 130, problem
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_a_command_that_was_killed_is_cleared_up_by_the_next(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.kill()
    (folder,) = tmp_path.iterdir()
    assert remove_leftovers(FileStore(tmp_path)) == (folder.name,)
    assert [*tmp_path.iterdir()] == []


def test_checks_have_names_of_their_own() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
