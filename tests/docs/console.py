"""A console in which a document's lines run one after the other.

`pulse` and `python -c` are called in this process, which has imported what each of them would import anew; what the
reader's shell would do more than to split and to substitute is left to bash, with the programs of this environment.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pulse_registry.cli import main

_OUTPUT = re.compile(r'"\$\((pulse [^()|]*)\)"')
"""A command whose output is an argument."""
_QUOTED = re.compile(r"""'[^']*'|"[^"$`\\]*\"""")
"""Text that is taken as it is."""
_BASH = re.compile(r"[$`|<>;&*?~(){}\[\]#\\]")
"""Characters that mean more to a shell than themselves."""


def run_line(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """Run a line in a folder, which is the working one; return its exit status, and what it printed.

    What it exports is in the environment of the lines after it.
    """
    while call := _OUTPUT.search(line):
        code, out = run_line(call[1], folder, monkeypatch)
        if code:
            return code, out
        line = line[: call.start()] + shlex.quote(out.rstrip("\n")) + line[call.end() :]
    if _BASH.search(_QUOTED.sub("", line)):
        return bash(line, folder)
    match shlex.split(line):
        case ["python", "-c", program]:
            return _called(lambda: exec(program, {"__name__": "__main__"}))
        case ["pulse", *arguments]:
            return _called(lambda: main(arguments))
        case ["export", *settings]:
            for setting in settings:
                name, _, value = setting.partition("=")
                monkeypatch.setenv(name, value)
            return 0, ""
    return bash(line, folder)


def bash(script: str, folder: Path) -> tuple[int, str]:
    """Run a script that ends with the first command that fails; return its exit status, and what it printed."""
    # `pulse` and `python` are those of the environment that runs the tests.
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def _called(function: Callable[[], int | None]) -> tuple[int, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = function()
    return code or 0, out.getvalue()
