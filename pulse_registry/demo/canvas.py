"""The canvas of a chart: a PNG file with four panels and a title, in the demo's colors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pulse_registry.process.private_files import new_file
from pulse_registry.quoting import printable

_INK: Final = "#1f2933"
FAINT: Final = "#d5dbe1"
LINES: Final = ("#0f766e", "#2563eb", "#c2410c", "#7c3aed", "#64748b", "#a16207")
"""Of lines side by side."""


@contextmanager
def canvas(path: Path, title: str) -> Iterator[Any]:
    """Make two by two panels for a block to draw in, and write the file at its end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    style: dict[Any, Any] = {  # matplotlib types its keys as a literal of them all
        "font.size": 10,
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "axes.edgecolor": FAINT,
        "axes.titlesize": 11.5,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "legend.frameon": False,
        "figure.constrained_layout.hspace": 0.06,
        "figure.constrained_layout.wspace": 0.04,
        "figure.constrained_layout.h_pad": 0.1,
    }
    with pyplot.rc_context(style):
        figure, panels = pyplot.subplots(2, 2, figsize=(13, 8.4), layout="constrained")
        yield panels
        # A name may have dollars in it.
        bold = {"fontsize": 14, "fontweight": "bold", "parse_math": False}
        figure.suptitle(printable(title), x=0.01, ha="left", **bold)
        with open(new_file(path, mode=0o644), "wb") as file:
            figure.savefig(file, dpi=130, format="png")
        pyplot.close(figure)


def whole_ticks(axis: Any) -> None:
    """Let an axis have ticks at whole numbers alone."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))
