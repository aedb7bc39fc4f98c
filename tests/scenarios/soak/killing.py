"""Does some work in a forked process that kills itself at its n-th step: ``python -m tests.scenarios.soak.killing``.

Steps are the two sides of every store call and of every file operation of an export, and the middle of those that
write; or, with ``lines``, the lines of Python that the library goes through, in any thread. In, a line each:
``[<n>, <lines>, "<work>", {<arguments>}]``, as JSON, 0 for no kill; out: ``killed`` or ``done <steps>``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import pulse_registry
from pulse_registry.interop import export_chain, export_delta, import_folder
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.retention import RetentionPolicy
from pulse_registry.store import FileStore
from tests.scenarios.soak.killed_pull import SteppedFiles, SteppedStore, step

RUN = "run"
LIBRARY = str(Path(pulse_registry.__file__).parent)
POLICY = RetentionPolicy(keep_last=2, keep_seconds=0, grace_seconds=0, orphan_seconds=0)


def opened(root: str) -> Registry:
    return Registry(
        SteppedStore(FileStore(root)),
        RUN,
        Options(push=PushOptions(dtype="keep"), compute=ComputeOptions(backend="reference")),
    )


def compact(root: str) -> None:
    with opened(root) as registry:
        compactor = registry.compactor()
        while compactor.step():
            pass
        compactor.close()


def collect(root: str) -> None:
    """Retire, then delete: two runs, as one never does both."""
    with opened(root) as registry:
        for _ in range(2):
            registry.gc(POLICY, dry_run=False)


def export(root: str, out: str, base: int | None) -> None:
    with opened(root) as registry:
        if base is None:
            list(export_chain(registry, Path(out), files=SteppedFiles()))
        else:
            export_delta(registry, Path(out), base, files=SteppedFiles())


def take(root: str, folder: str) -> None:
    with opened(root) as registry:
        list(import_folder(registry, Path(folder)))


WORK = {"compact": compact, "gc": collect, "export": export, "import": take}


def step_by_line(frame: FrameType, event: str, argument: Any) -> Any:
    if not frame.f_code.co_filename.startswith(LIBRARY):
        return None
    if event == "line":
        step()
    return step_by_line


def work(number: int, lines: bool, name: str, arguments: dict[str, Any], writing: int) -> NoReturn:
    step.last = number
    if lines:
        threading.settrace(step_by_line)
        sys.settrace(step_by_line)
    try:
        WORK[name](**arguments)
        os.write(writing, str(step.count).encode())
    except BaseException:  # noqa: BLE001 - the outermost edge of a fork: whatever it is, the parent must not go on in it
        traceback.print_exc()
    finally:
        os._exit(0)


def serve() -> None:
    for line in sys.stdin:
        number, lines, name, arguments = json.loads(line)
        assert threading.active_count() == 1  # or a fork could not run
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            work(number, lines, name, arguments, writing)
        os.close(writing)
        with os.fdopen(reading) as answer:
            said = answer.read()
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print("killed" if killed else f"done {said}" if said else "failed", flush=True)


if __name__ == "__main__":
    serve()
