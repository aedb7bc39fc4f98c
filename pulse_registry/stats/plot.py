"""A plot of a run's stats: shares and overlap by version, layers by version, windows, sizes, exponents, metadata.

It is drawn by matplotlib, which is imported only here, and without a display.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from pulse_registry.errors import InvalidArgument
from pulse_registry.quoting import printable
from pulse_registry.stats.run_stats import RunStats

SUFFIXES: Final = (".png", ".svg", ".pdf")
_STYLE: Final = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlesize": 10,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "pulse-registry",
    "text.parse_math": False,  # a name may have dollars in it
}
_LINES: Final = ("#0f766e", "#2563eb", "#c2410c", "#7c3aed", "#a16207", "#64748b")
_MOST_METADATA, _MOST_LAYERS = 3, 24
"""Panels of metadata; names beside the heat map."""
Panel = Callable[[Any, RunStats], None]


def checked_suffix(path: Path) -> Path:
    """Return a plot's file.

    Raises:
        InvalidArgument: its name does not say a format that there is; or there is nothing to draw with.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidArgument(f"{path} is no plot: give it a name that ends with {', '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidArgument("a plot needs matplotlib: pip install 'pulse-registry[demo]'") from None
    return path


def write_plot(path: Path, found: RunStats, metadata: Mapping[int, Mapping[str, Any]]) -> None:
    """Draw stats into a file.

    Args:
        path: of the file, as ``checked_suffix`` returns it.
        found: the stats.
        metadata: by version; its numbers are drawn over the same versions.

    Raises:
        InvalidArgument: there are no steps, or the file can't be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    if not found.steps:
        raise InvalidArgument(f"there is no plot of versions {found.first} to {found.last}: no step was seen")
    panels: list[Panel] = [_shares, _layers, _again, _windows, _sizes]
    panels += [_exponents] if found.exponents else []
    numbers = _numbers(found, metadata)
    rows = -(-(len(panels) + len(numbers)) // 2)
    with rc_context(_STYLE):  # type: ignore[arg-type]  # matplotlib types its keys as a literal of them all
        figure = Figure(figsize=(12, 3 * rows), layout="constrained", facecolor="white")
        axes = figure.subplots(rows, 2, squeeze=False).ravel().tolist()
        for panel, ax in zip(panels, axes, strict=False):
            panel(ax, found)
        for (name, values), ax in zip(numbers.items(), axes[len(panels) :], strict=False):
            ax.plot(list(values), list(values.values()), color=_LINES[1], marker=".", markersize=3, linewidth=1)
            ax.set(title=_text(name), xlabel="version")
        for ax in axes[len(panels) + len(numbers) :]:
            ax.set_axis_off()
        title = f"run {found.run}, versions {found.first} to {found.last}"
        figure.suptitle(_text(title), x=0.01, ha="left", fontweight="bold")
        out = io.BytesIO()
        kind = path.suffix.lower().removeprefix(".")
        figure.savefig(out, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None)
    try:
        path.write_bytes(out.getvalue())
    except OSError as error:
        raise InvalidArgument(f"{path} can't be written: {error.strerror or error}") from error


def _shares(ax: Any, found: RunStats) -> None:
    for colour, (kind, shares) in zip(_LINES, found.kind_shares().items(), strict=False):
        ax.plot(_targets(found), _percent(shares), color=colour, linewidth=1, label=kind)
    ax.set(title="changed a step, %", xlabel="version", ylim=(0, None))
    ax.legend(ncols=3, loc="upper left", bbox_to_anchor=(0, -0.18))


def _layers(ax: Any, found: RunStats) -> None:
    layers, shares = found.layer_shares()
    versions = _targets(found)
    edges = [found.steps[0].base + 0.5, *(version + 0.5 for version in versions)]
    drawn = np.ma.masked_invalid(100 * shares.T)
    image = ax.pcolormesh(edges, np.arange(len(layers) + 1), drawn, cmap="viridis", rasterized=True)
    every = -(-len(layers) // _MOST_LAYERS)
    ax.set_yticks(np.arange(0, len(layers), every) + 0.5, [_text(layer)[-28:] for layer in layers[::every]], fontsize=6)
    ax.invert_yaxis()
    ax.set(title="changed a step by layer, %", xlabel="version")
    ax.figure.colorbar(image, ax=ax)


def _again(ax: Any, found: RunStats) -> None:
    changed = [int(step.changed.sum()) for step in found.steps]
    again = [np.nan if step.again is None else int(step.again.sum()) for step in found.steps]
    ax.plot(_targets(found), _percent(_over(again, changed)), color=_LINES[1], linewidth=1, label="changed again")
    if all(step.flipped is not None for step in found.steps):
        flipped = [0 if step.flipped is None else int(step.flipped.sum()) for step in found.steps]
        ax.plot(_targets(found), _percent(_over(flipped, changed)), color=_LINES[2], linewidth=1, label="signs flipped")
    ax.set(title="of the changed cells, %", xlabel="version", ylim=(0, None))
    ax.legend(loc="best")


def _windows(ax: Any, found: RunStats) -> None:
    lengths = [one.length for one in found.by_window]
    ax.plot(lengths, [100 * one.share for one in found.by_window], "o-", color=_LINES[0], label="changed")
    touched = [100 * one.touched / one.cells for one in found.by_window]
    ax.plot(lengths, touched, "o--", color=_LINES[5], label="touched; less the changed: came back")
    if lengths:
        ax.set_xscale("log", base=2)
        ax.set_xticks(lengths, [str(length) for length in lengths])
    ax.set(title="over so many versions, % of the cells", xlabel="versions", ylim=(0, None))
    ax.legend(loc="best")


def _sizes(ax: Any, found: RunStats) -> None:
    for place, (dtype, counts) in enumerate(sorted(found.sizes.items())):
        powers = np.flatnonzero(counts)
        if len(powers):
            ax.plot(powers, counts[powers], "o-", color=_LINES[place % len(_LINES)], markersize=3, label=dtype)
    top = max((int(np.flatnonzero(counts).max(initial=0)) for counts in found.sizes.values()), default=0)
    every = -(-(top + 1) // 8)
    ax.set_xticks(range(0, top + 1, every), [str(1 << power) for power in range(0, top + 1, every)])
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.set(title="cells by how far they moved", xlabel="steps of the dtype, from")
    ax.legend(loc="best")


def _exponents(ax: Any, found: RunStats) -> None:
    for place, (dtype, one) in enumerate(sorted(found.exponents.items())):
        there = np.flatnonzero(one.cells)
        shares = 100 * one.changed[there] / one.cells[there]
        ax.plot(there, shares, ".-", color=_LINES[place % len(_LINES)], label=dtype)
    ax.set(title="changed a step by exponent, %", xlabel="exponent, as its bits have it", ylim=(0, None))
    ax.legend(loc="best")


def _numbers(found: RunStats, metadata: Mapping[int, Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Return what of the metadata is a number, by name and version: the names that most versions have."""
    numbers: dict[str, dict[int, float]] = {}
    for version in _targets(found):
        for name, value in metadata.get(version, {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                numbers.setdefault(name, {})[version] = float(value)
    most = sorted(numbers, key=lambda name: (-len(numbers[name]), name))[:_MOST_METADATA]
    return {name: numbers[name] for name in most}


def _targets(found: RunStats) -> list[int]:
    return [step.target for step in found.steps]


def _over(parts: Sequence[float], wholes: Sequence[int]) -> list[float]:
    return [part / whole if whole else np.nan for part, whole in zip(parts, wholes, strict=True)]


def _percent(shares: Sequence[float]) -> list[float]:
    return [100 * share for share in shares]


def _text(text: str) -> str:
    return printable(text[:80])
