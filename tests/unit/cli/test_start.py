"""The program ``pulse`` from its first line on: what Ctrl-C does while it loads."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pulse_start
from tests.support.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[3]
INTERRUPTED = """
import os, signal, sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == "pulse_registry.errors":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background, where it is ignored
sys.meta_path.insert(0, Interrupter())
from {module} import {function} as main
sys.exit(main())
"""


def test_ctrl_c_while_it_loads_is_no_traceback() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["pulse"].partition(":")
    program = INTERRUPTED.format(module=module, function=function)
    done = subprocess.run([sys.executable, "-c", program, "log"], capture_output=True, text=True, timeout=HANG_S)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_what_handles_ctrl_c_afterwards_is_as_it_was(handler: signal.Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pulse", "--help"])
    before = signal.signal(signal.SIGINT, handler)
    try:
        assert pulse_start.main() == 0
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_afterwards_if_it_was_before(collects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pulse", "--help"])
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        assert pulse_start.main() == 0
        assert gc.isenabled() is collects
    finally:
        (gc.enable if before else gc.disable)()
