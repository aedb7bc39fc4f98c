"""The end of a demo: its exit status, and its report, however it went."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pulse_registry.process.private_files import new_file
from pulse_registry.quoting import say


class DemoFailed(Exception):
    """A process ended with an error, was killed, refused what it was asked, or gave no sign of life."""


def to_the_end(program: str, out: Path, run: Callable[[], dict[str, Any]]) -> dict[str, Any] | int:
    """Run a demo, and leave its report in ``out``.

    Args:
        program: its name, for messages.
        out: the folder of ``report.json``.
        run: the demo; returns the report.

    Returns:
        The report; or the exit status of a demo that has none: 130, it was interrupted, or 1, it failed.
    """
    try:
        report = run()
    except KeyboardInterrupt:
        say(f"{program}: stopped; no process is left", error=True)
        return 130
    except DemoFailed as error:
        for line in f"{program}: {error}".splitlines():
            say(line, error=True)
        return 1
    with open(new_file(out / "report.json", mode=0o644), "w", encoding="utf-8") as file:
        file.write(json.dumps(report, indent=1) + "\n")
    return report
