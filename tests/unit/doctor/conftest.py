"""The command line's fixture, for the doctor's command."""

from __future__ import annotations

from tests.unit.cli.conftest import pulse

__all__ = ["pulse"]
