"""A program of the demo: what it prints is logged, its documents are told, and it ends with what it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from pulse_registry.demo.program import Program
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it asks the kernel to end with its parent")


def program(folder: Path, code: str, tell: Any = None) -> Program:
    return Program("some", [sys.executable, "-c", textwrap.dedent(code)], folder, {"WORD": "told"}, tell)


def alive(number: int) -> bool:
    try:
        return "(zombie)" not in (Path("/proc") / str(number) / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_documents_are_told_and_all_is_logged(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    some = program(
        tmp_path,
        """
        import json, os, sys
        print("a library's own words"); print(json.dumps({"word": os.environ["WORD"]})); print("[1]")
        print("an error", file=sys.stderr)
        sys.exit(3)
        """,
        told.append,
    )
    until(lambda: some.status is not None)
    until(lambda: "[1]" in some.last_lines())
    assert (some.status, told) == (3, [{"word": "told"}])
    assert all(text in some.last_lines() for text in ("a library's own words", '{"word": "told"}', "an error"))
    some.stop()


def test_it_ends_with_what_it_has_started(tmp_path: Path) -> None:
    some = program(
        tmp_path,
        """
        import signal, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(child.pid, flush=True)
        time.sleep(600)
        """,
    )
    until(lambda: some.last_lines().strip().isdecimal())
    child = int(some.last_lines())
    assert some.status is None
    some.stop()
    some.stop()
    until(lambda: not alive(child))
    assert some.status is not None


def test_it_stands_still_in_a_pause_and_goes_on_after_it_until_it_is_killed(tmp_path: Path) -> None:
    some = program(
        tmp_path,
        """
        import os, time
        print(os.getpid(), flush=True)
        time.sleep(600)
        """,
    )
    until(lambda: some.last_lines().strip().isdecimal())
    status = Path("/proc") / some.last_lines().strip() / "status"
    some.pause()
    until(lambda: "(stopped)" in status.read_text())
    some.resume()
    until(lambda: "(stopped)" not in status.read_text())
    assert some.status is None
    some.kill()
    assert some.status == -signal.SIGKILL


@pytest.mark.slow
def test_it_ends_when_the_demo_is_killed(tmp_path: Path) -> None:
    code = f"""
    import os, sys, time
    from pathlib import Path
    from pulse_registry.demo.program import Program
    Program("some", [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"],
            Path({str(tmp_path)!r}), {{}})
    time.sleep(600)
    """
    log = tmp_path / "some.log"
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=os.environ | {"PYTHONPATH": "."}) as demo:
        try:
            until(lambda: log.is_file() and log.read_text().strip().isdecimal())
        finally:
            demo.kill()
    until(lambda: not alive(int(log.read_text())))
