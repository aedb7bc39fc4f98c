"""The chart of a run: bytes a version, times by phase, where each worker was when, and how old completions were."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pulse_registry.demo.board import Board
from pulse_registry.demo.canvas import FAINT, LINES, canvas, whole_ticks
from pulse_registry.demo.display import number_of_milliseconds
from pulse_registry.demo.report import staleness

_FULL, _PATCH, _KEYFRAME = "#c2410c", "#0f766e", "#94a3b8"
_PUSH = {"diff": "#1e3a8a", "code": "#2563eb", "upload": "#7ca9f5", "commit": "#c3d7fa"}
_PULL = {"route": "#c5ebe3", "fetch": "#7dd3c0", "decode": "#14b8a6", "verify": "#0f766e", "apply": "#c2410c"}
_PHASES = _PUSH | _PULL


def draw(board: Board, path: Path) -> None:
    """Draw the chart into a PNG file."""
    parameters = f"{board.loaded.parameters / 1e6:,.1f} M parameters, " if board.loaded is not None else ""
    ranks = f" on {board.settings.ranks} ranks" if board.settings.ranks > 1 else ""
    title = (
        f"{board.settings.source.name}: {parameters}{board.settings.steps} GRPO steps{ranks} in {board.seconds:.0f} s"
    )
    with canvas(path, title) as panels:
        _bytes_panel(panels[0, 0], board)
        _times_panel(panels[0, 1], board)
        _workers_panel(panels[1, 0], board)
        _staleness_panel(panels[1, 1], board)


def _bytes_panel(axes: Any, board: Board) -> None:
    entries = [board.published[number] for number in sorted(board.published)]
    colors = [_PATCH if entry.kind == "patch" else _KEYFRAME for entry in entries]
    axes.bar([entry.version for entry in entries], [entry.nbytes / 1e6 for entry in entries], color=colors, width=0.7)
    full = board.full_nbytes / 1e6
    axes.axhline(full, color=_FULL, linewidth=1.6, linestyle="--")
    axes.set_yscale("log")
    patches = [entry.nbytes / 1e6 for entry in entries if entry.kind == "patch" and entry.nbytes]
    axes.set_ylim(min([*patches, full]) / 4, full * 6)
    axes.text(len(entries) - 0.6, full * 1.25, f"full BF16 weights: {_megabytes(full)}", color=_FULL, ha="right")
    for entry in entries if len(entries) <= 16 else []:
        if entry.kind == "patch":
            ratio = f"{entry.full_nbytes / entry.nbytes:,.0f}x"
            axes.annotate(
                ratio, (entry.version, entry.nbytes / 1e6), (0, 3), textcoords="offset points", ha="center", fontsize=9
            )
    axes.set_title("Bytes pushed per version (log scale; ratio to full weights)")
    axes.set_xlabel("version (grey: keyframe)")
    axes.set_ylabel("MB")
    whole_ticks(axes.xaxis)


def _times_panel(axes: Any, board: Board) -> None:
    pulls = [pulled for worker in board.in_order for _, pulled in worker.pulls]
    follows = [p.phases for p in pulls if p.before is not None and p.version == p.before + 1]
    jumps = [p.phases for p in pulls if p.before is not None and p.version != p.before + 1]
    rows = [
        ("push a patch", [e.phases for e in board.published.values() if e.kind == "patch"]),
        ("pull the next\nversion", follows),
        ("pull across\nseveral, or back", jumps),
    ]
    rows = [(name, phases) for name, phases in rows if phases]
    for place, (_, phases) in enumerate(rows):
        left = 0.0
        for phase, value in _medians(phases).items():
            axes.barh(place, 1e3 * value, left=left, color=_PHASES.get(phase, FAINT), height=0.55)
            left += 1e3 * value
        label = f" {number_of_milliseconds(left / 1e3)} ms"
        if "apply" in phases[0]:
            label += f", apply {number_of_milliseconds(_medians(phases)['apply'])}"
        axes.text(left, place, label, va="center", fontsize=9)
    axes.set_yticks(range(len(rows)), [f"{name}\n({len(phases)} times)" for name, phases in rows])
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms (median of each phase)")
    axes.set_title("Times by phase, beside training and generation")
    _phase_legend(axes)


def _phase_legend(axes: Any) -> None:
    from matplotlib.patches import Patch

    columns = itertools.zip_longest(["push:", *_PUSH], ["pull:", *_PULL], fillvalue="")
    handles = [Patch(color=_PHASES.get(name, "none"), label=name) for column in columns for name in column]
    axes.legend(
        handles=handles,
        ncols=len(handles) // 2,
        loc="upper center",
        bbox_to_anchor=(0.42, -0.16),
        fontsize=9,
        columnspacing=1.0,
        handlelength=1.1,
        handletextpad=0.4,
    )


def _workers_panel(axes: Any, board: Board) -> None:
    end = board.seconds
    made = sorted((at, version) for version, at in board.published_at.items())
    if made:
        axes.step(
            [at for at, _ in made] + [end],
            [version for _, version in made] + [made[-1][1]],
            where="post",
            color=FAINT,
            linewidth=7,
            solid_capstyle="butt",
            label="published",
        )
    for place, worker in enumerate(board.in_order):
        times = [at for at, _ in worker.pulls] + [end]
        held = [pulled.version for _, pulled in worker.pulls]
        color = LINES[place % len(LINES)]
        axes.step(times, [*held, held[-1]], where="post", color=color, linewidth=1.7, label=worker.name)
        axes.plot(times[:-1], held, "o", color=color, markersize=3.5)
    axes.set_title("Version that each worker holds")
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel("version")
    axes.set_xlim(left=made[0][0] * 0.9 if made else 0)
    axes.legend(loc="upper left", fontsize=9)
    whole_ticks(axes.yaxis)


def _staleness_panel(axes: Any, board: Board) -> None:
    counts = Counter(staleness(board))
    longest = max([*counts, 2])
    places = range(longest + 1)
    bars = axes.bar(places, [counts.get(place, 0) for place in places], color=_PATCH, width=0.6)
    axes.bar_label(bars, fontsize=9, padding=2)
    axes.set_title("Staleness: versions that a group of completions was behind")
    axes.set_xlabel("versions behind the trainer when it was learned from")
    axes.set_ylabel(f"groups of {board.settings.group_size} completions")
    axes.margins(y=0.12)
    whole_ticks(axes.xaxis)
    whole_ticks(axes.yaxis)


def _medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = [name for name in _PHASES if any(name in row for row in rows)]
    return {name: statistics.median(row.get(name, 0.0) for row in rows) for name in names}


def _megabytes(value: float) -> str:
    return f"{value:,.0f} MB" if value >= 10 else f"{value:,.2f} MB"
