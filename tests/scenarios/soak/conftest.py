"""The command line's fixtures."""

from __future__ import annotations

from tests.support.command_line import pulse, pushed_run, run

__all__ = ["pulse", "pushed_run", "run"]
