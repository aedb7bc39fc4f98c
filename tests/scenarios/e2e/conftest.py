"""The command line's fixture."""

from __future__ import annotations

from tests.support.command_line import pulse

__all__ = ["pulse"]
