"""The command line's fixtures, for pulls through a cache."""

from __future__ import annotations

from tests.support.command_line import pulse, pushed_run, run

__all__ = ["pulse", "pushed_run", "run"]
