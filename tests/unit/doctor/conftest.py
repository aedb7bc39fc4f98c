"""The command line's fixture, for the doctor's command."""

from __future__ import annotations

from tests.support.command_line import pulse

__all__ = ["pulse"]
