"""The demo in a session of its own, as its tests start it, and what is left of it."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.waiting import HANG_S, until

PROGRAM = """
import signal, sys
from pathlib import Path
from pulse_registry.demo import run_demo

signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background, where it is ignored

steps, model, ranks, root, out, form = sys.argv[1:]
options = {"steps": int(steps), "model": model, "ranks": int(ranks), "root": root or None, "out": Path(out)}
sys.exit(run_demo(**options, json_output=form == "json"))
"""


def demo(
    out: Path, *, steps: int = 8, model: str = "tiny", ranks: int = 1, root: str = "", form: str = "json"
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(steps), model, str(ranks), root, str(out), form],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, errors = process.communicate(timeout=5 * HANG_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, errors


def session_of(folder: Path) -> int:
    return int((folder / "stat").read_text().rpartition(")")[2].split()[3])


def left_of(session: int, seconds: float = HANG_S) -> list[str]:
    """Return the command lines of a session's processes that do not end by themselves, as Python's own helper does."""
    left = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if session_of(folder) != session:
                continue
            ended = os.pidfd_open(int(folder.name))
            try:
                if not select.select([ended], [], [], seconds)[0]:
                    left.append((folder / "cmdline").read_text())
            finally:
                os.close(ended)
    return left


def happens(process: subprocess.Popen[str], ready: Callable[[], Any]) -> Any:
    """Wait until something is so while a process runs, and return it."""
    try:
        until(lambda: ready() or process.poll() is not None)
    except BaseException:
        process.terminate()
        raise
    if not (result := ready()):
        raise AssertionError(f"the demo ended: {process.communicate()}")
    return result


def child_with_log(session: int, log: Path) -> int | None:
    """Return the process of a session whose standard output is this file."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if session_of(folder) == session and (folder / "fd" / "1").resolve() == log.resolve():
                return int(folder.name)
    return None
