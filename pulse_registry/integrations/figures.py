"""Figures: what a tracker of experiments is told of a push or a pull, and under which names: this place alone says."""

from __future__ import annotations

from typing import Final

from pulse_registry.results import PullResult, PushResult

PUSH: Final = "pulse/push/"
PULL: Final = "pulse/pull/"
NAMES: Final = ("version", "step", "bytes", "changed_share", "pause_s")
"""Of both; ``version`` is what the others are plotted over."""


def figures(result: PushResult | PullResult) -> dict[str, float]:
    """Return the figures of a push or a pull by their whole names.

    ``bytes``: stored, or fetched. ``changed_share``: cells that changed, of all cells of the version. ``pause_s``: of a
    push what a trainer waits for with ``wait=False`` (the phases ``wait`` and ``diff``), of a pull what a worker waits
    for while its weights change (``apply``).
    """
    pushed = isinstance(result, PushResult)
    waits = ("wait", "diff") if pushed else ("apply",)
    values = (
        result.version,
        result.step,
        result.nbytes,
        result.changed / result.cells if result.cells else 0.0,
        sum(result.phases.get(phase, 0.0) for phase in waits),
    )
    prefix = PUSH if pushed else PULL
    return {prefix + name: value for name, value in zip(NAMES, values, strict=True)}
