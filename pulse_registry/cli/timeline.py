"""``--timeline``: draws the phases of a push or a pull as bars over its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pulse_registry.cli.output import print_table, size
from pulse_registry.timeline import Phase

TimelineOption = Annotated[bool, typer.Option("--timeline", help="Show when each phase began and ended.")]
_WIDTH = 40


def timeline_rows(phases: Sequence[Phase]) -> list[dict[str, Any]]:
    """Return the phases for a JSON document."""
    return [asdict(phase) for phase in phases]


def print_timeline(phases: Sequence[Phase]) -> None:
    """Print a line a phase: its bar, when it began and ended, the threads' time in it, its bytes and their rate."""
    whole = max((phase.end for phase in phases), default=0.0)
    rows = [
        (
            phase.phase,
            bar(phase, whole),
            f"{phase.start * 1e3:.1f}",
            f"{phase.end * 1e3:.1f}",
            f"{phase.busy * 1e3:.1f}",
            size(phase.nbytes) if phase.nbytes else None,
        )
        for phase in phases
    ]
    print_table(("phase", "", "start ms", "end ms", "busy ms", "bytes"), rows)


def bar(phase: Phase, whole: float) -> str:
    """Return a phase's bar within ``whole`` seconds: at least one mark, however short it is."""
    began, ended = (phase.start / whole, phase.end / whole) if whole else (0.0, 0.0)
    first = min(int(began * _WIDTH), _WIDTH - 1)
    last = max(first + 1, min(round(ended * _WIDTH), _WIDTH))
    return "·" * first + "█" * (last - first) + "·" * (_WIDTH - last)
