"""Forks and pickles: a child opens its own run, its parent's registry says so, and what travels carries no secret."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pulse_registry
from pulse_registry import InvalidArgument, Registry, SigningKey, Trust
from pulse_registry.runtime import dependencies
from pulse_registry.runtime.dependencies import Threads
from pulse_registry.store import FileStore

PREAMBLE = """
import os, signal, sys, threading
import numpy as np
import pulse_registry
signal.alarm(200)  # what hangs, dies
def weights(seed=0):
    return {"w": np.random.default_rng(seed).standard_normal((1000, 1000)).astype(np.float32)}
def stepped():
    model = weights()
    model["w"][3, 5] += 1.0
    return model
def opened(**options):
    push = pulse_registry.PushOptions(dtype="keep")
    compute = pulse_registry.ComputeOptions(backend="reference")
    return pulse_registry.open(sys.argv[1], run="run", push=push, compute=compute, **options)
def in_child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(100)
        work()
        sys.exit(0)  # and with it all that waits at the end of a process
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


def script(code: str, root: Path) -> list[str]:
    """Run code in a new process; return what it and its children printed, line by line."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PREAMBLE + code, str(root)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_child_of_a_parent_that_pushed_and_pulled_opens_its_own_pulls_and_exits(tmp_path: Path):
    code = """
parent = opened(name="parent")
parent.push(0, weights())
parent.pull(into=weights(1))
def child():
    with opened(name="child") as own:
        into = weights(1)
        say("child", own.pull(into=into).version, np.array_equal(into["w"], weights()["w"]))
        say("child", own.push(1, stepped()).version)
say("exit", in_child(child))
say("parent", parent.pull(into=weights(1)).version)
parent.close()
"""
    assert script(code, tmp_path) == ["child 0 True", "child 1", "exit 0", "parent 1"]


@pytest.mark.slow
def test_a_child_compiles_although_another_thread_of_its_parent_did_at_the_fork(tmp_path: Path):
    code = """
from pulse_kernels.cpu.compile_lock import COMPILING
held = threading.Event()
def compile():
    with COMPILING:
        held.set()
        for _ in range(1_000_000):
            pass
thread = threading.Thread(target=compile)
thread.start()
held.wait()
def child():
    with COMPILING:
        say("child")
say("exit", in_child(child))
thread.join()
with COMPILING:
    say("parent")
"""
    assert script(code, tmp_path) == ["child", "exit 0", "parent"]


@pytest.mark.slow
def test_a_fork_in_the_middle_of_the_warm_up_leaves_no_thread_behind_and_it_goes_on(tmp_path: Path):
    code = """
from pulse_kernels import warm_up
begun = threading.Event()
def work(stopped):
    while not stopped() and not begun.is_set():
        pass
warm_up._ahead = warm_up.Ahead(work)
warm_up.warm_up_ahead()
def child():
    say("child", threading.active_count())
    begun.set()
    warm_up.warm_up_ahead()
    warm_up._ahead.join()
say("exit", in_child(child))
say("parent", threading.active_count())
begun.set()
"""
    assert script(code, tmp_path) == ["child 1", "exit 0", "parent 2"]


@pytest.mark.slow
def test_a_parents_registry_says_in_the_child_whose_it_is(tmp_path: Path):
    code = """
parent = opened(name="parent")
parent.push(0, weights())
def child():
    calls = [
        lambda: parent.push(1, weights()),
        lambda: parent.pull(into=weights(1)),
        lambda: parent.stage(into=weights(1)),
        lambda: parent.load(),
        lambda: parent.prefetch(into=weights(1)),
        lambda: parent.versions(),
        lambda: next(parent.watch()),
        lambda: parent.verify(),
        lambda: parent.tag("best", 0),
        lambda: parent.gc(),
        lambda: parent.compactor(),
        lambda: parent.report("parent", None),
    ]
    for number, call in enumerate(calls):
        try:
            call()
        except pulse_registry.InvalidArgument as error:
            if str(os.getppid()) in str(error) and str(os.getpid()) in str(error):
                continue
        say("not refused", number)
say("exit", in_child(child))
say("parent", parent.push(1, stepped()).version)
parent.close()
"""
    assert script(code, tmp_path) == ["exit 0", "parent 1"]


@pytest.mark.slow
def test_to_close_a_parents_registry_in_the_child_does_nothing(tmp_path: Path):
    code = """
import pathlib
root = pathlib.Path(sys.argv[1])
parent = opened(name="parent")
parent.push(0, weights())
parent.pull(into=weights(1))
leases = lambda: sorted(path.name for path in root.glob("run/leases/*") if not path.name.startswith("."))
while not leases():
    pass
before = leases()
def child():
    with parent:
        pass
    parent.close()
say("exit", in_child(child))
say("kept", leases() == before)
say("parent", parent.push(1, stepped()).version)
parent.close()
say("left", len(leases()))
"""
    assert script(code, tmp_path) == ["exit 0", "kept True", "parent 1", "left 0"]


@pytest.mark.slow
def test_a_child_leaves_the_files_of_its_parents_pull_alone(tmp_path: Path):
    code = """
import pathlib
from pulse_registry.pull.download import SpoolFile
from pulse_schemas import ObjectRef
folder = pathlib.Path(sys.argv[1])
shard = SpoolFile(ObjectRef(key="objects/k", size=8, blake3="0" * 64), folder)
say("exit", in_child(shard.close))
say("files", len(list(folder.iterdir())))
shard.close()
say("files", len(list(folder.iterdir())))
"""
    assert script(code, tmp_path) == ["exit 0", "files 1", "files 0"]


CHILD = """
def work(registry):
    import numpy as np
    into = {"w": np.zeros((4, 4), np.float32)}
    return registry.pull(into=into).version, float(into["w"][1, 1])
"""


@pytest.mark.slow
def test_a_registry_travels_to_a_spawned_process(tmp_path: Path):
    (tmp_path / "traveller.py").write_text(CHILD)
    code = """
if __name__ == "__main__":
    import multiprocessing
    sys.path.insert(0, sys.argv[1])
    from traveller import work
    with opened(name="host-1") as registry:
        registry.push(0, {"w": np.full((4, 4), 0.5, np.float32)})
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            say(*pool.apply(work, (registry,)))
"""
    assert script(code, tmp_path) == ["0 0.5"]


def pickled(registry: Registry) -> Registry:
    return pickle.loads(pickle.dumps(registry))


def test_a_pickled_registry_opens_the_same_run_with_the_same_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[tuple[int, str]] = []

    class Noted(Threads):
        def __init__(self, count: int, name: str) -> None:
            super().__init__(count, name)
            made.append((count, name))

    monkeypatch.chdir(tmp_path)
    with pulse_registry.open(
        "policies",
        run="math",
        push=pulse_registry.PushOptions(dtype="keep"),
        compute=pulse_registry.ComputeOptions(threads=3, backend="reference"),
    ) as registry:
        registry.push(0, {"w": np.zeros(4, np.float32)})
        monkeypatch.chdir("/")
        monkeypatch.setattr(dependencies, "Threads", Noted)
        with pickled(registry) as twin, pickled(twin) as third:
            assert (twin.url, twin.run) == (registry.url, "math")
            assert third.layout().tensors[0].dtype == "F32"
            assert third.version().version == 0
            assert (3, "pulse") in made


def test_a_pickle_carries_no_token_and_no_key_and_takes_those_of_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    key = SigningKey.generate()
    key.save(tmp_path / "key.pem")
    where = {"run": "run", "compute": pulse_registry.ComputeOptions(backend="reference")}
    service = pulse_registry.open("https://host.invalid", token="pulse_secret_of_mine", **where)
    assert b"secret" not in pickle.dumps(service)
    signed = {"trust": Trust([key.public], state_dir=tmp_path / "seen"), **where}
    push = pulse_registry.PushOptions(dtype="keep", signing_key=key)
    with (
        service,
        pulse_registry.open(str(tmp_path / "root"), push=push, **signed) as registry,
    ):
        registry.push(0, {"w": np.zeros(4, np.float32)})
        with pickled(registry) as twin:
            assert twin.version().version == 0
            with pytest.raises(InvalidArgument, match="PULSE_SIGNING_KEY"):
                twin.push(1, {"w": np.ones(4, np.float32)})
        monkeypatch.setenv("PULSE_SIGNING_KEY", str(tmp_path / "key.pem"))
        with pickled(registry) as twin:
            assert twin.push(1, {"w": np.ones(4, np.float32)}).version == 1


def test_pins_travel_as_they_are(tmp_path: Path):
    key = SigningKey.generate()
    trust = Trust([f"{key.public}=attach,retire"], max_age_s=5.0, state_dir=tmp_path)
    twin = pickle.loads(pickle.dumps(trust))
    assert (repr(twin), twin.max_age_s, twin.state_dir) == (repr(trust), 5.0, tmp_path)


def test_what_no_other_process_can_open_says_so(tmp_path: Path):
    with pulse_registry.open("memory://forks", run="run") as in_memory, pytest.raises(InvalidArgument, match="memory"):
        pickle.dumps(in_memory)
    with Registry(FileStore(tmp_path), "run") as of_a_store, pytest.raises(InvalidArgument, match="URL"):
        pickle.dumps(of_a_store)


@pytest.mark.slow
def test_a_child_that_asks_for_the_end_of_its_parents_push_is_told_and_does_not_wait(tmp_path: Path):
    code = """
from pulse_registry.push.future import PushFuture
pending, done = PushFuture(7), PushFuture(8)
done.set_result("committed")
def child():
    for ask in (pending.result, pending.exception):
        try:
            ask()
        except pulse_registry.InvalidArgument as error:
            say(type(error).__name__, "step 7" in str(error), str(os.getppid()) in str(error))
    say(done.result())
say("exit", in_child(child))
"""
    told = "InvalidArgument True True"
    assert script(code, tmp_path) == [told, told, "committed", "exit 0"]
