"""The command line's fixtures."""

from __future__ import annotations

from tests.support.command_line import pulse, run

__all__ = ["pulse", "run"]
