"""The plots of docs/benchmarks.md, made from the result files as SVG: the same results give the same bytes.

Each file says in its description which figures it shows (their BLAKE3), so that a plot that is not the results' is
found without comparing the drawing, which differs from one release of matplotlib to the next.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[1] / "docs" / "plots"
_OURS, _OTHERS, _MARK = "#1f6feb", "#9aa4b2", "#d1242f"
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pulse-registry",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_CODERS = ("class", "gap", "auto")
_NAMED = 6
"""Lines of a panel that have a colour and a name, the steepest ones, where there are too many."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot: its file's name, what it shows in a line, the figures in it, and what draws them."""

    name: str
    title: str
    figures: dict[str, Any]
    draw: Callable[[Figure, dict[str, Any]], None]

    @property
    def mark(self) -> str:
        """What the file's description says."""
        return f"figures {blake3(json.dumps(self.figures, sort_keys=True).encode()).hexdigest()}"

    def svg(self) -> bytes:
        """Draw it."""
        with rc_context(_STYLE):
            figure = Figure(figsize=(8, 1), layout="constrained", facecolor="white")
            self.draw(figure, self.figures)
            figure.suptitle(self.title, x=0.01, ha="left", fontweight="bold")
            out = io.BytesIO()
            figure.savefig(out, format="svg", metadata={"Date": None, "Description": self.mark})
        return b"\n".join(line.rstrip() for line in out.getvalue().splitlines()) + b"\n"


def plots(documents: Sequence[dict[str, Any]]) -> list[Plot]:
    """Return the plots that there are results for."""
    coded = [document for document in documents if "sizes" in document and "states" in document]
    found = [_bits(coded), _times(coded)]
    found += [_links(document) for document in documents if document.get("kind") == "links"]
    found += [_sizes(document) for document in documents if document.get("kind") == "scale"]
    found += [_behind(document) for document in documents if document.get("kind") == "ladder"]
    found += [_growth(document) for document in documents if document.get("kind") == "growth"]
    found += [_rewards(document) for document in documents if document.get("kind") == "outer-grpo"]
    return [plot for plot in found if plot is not None]


def write_plots(documents: Sequence[dict[str, Any]], folder: Path = FOLDER) -> bool:
    """Write all plots that are not there yet or show other figures, remove the rest; tell whether anything changed."""
    wanted = {f"{plot.name}.svg": plot for plot in plots(documents)}
    stale = [path for path in folder.glob("*.svg") if path.name not in wanted]
    for path in stale:
        path.unlink()
    changed = bool(stale)
    folder.mkdir(parents=True, exist_ok=True)
    for name, plot in wanted.items():
        if not is_current(folder / name, plot):
            (folder / name).write_bytes(plot.svg())
            changed = True
    return changed


def is_current(path: Path, plot: Plot) -> bool:
    """Tell whether a file shows the figures of a plot."""
    return path.exists() and plot.mark in path.read_text()


def _bits(coded: Sequence[dict[str, Any]]) -> Plot | None:
    figures = {}
    for document in reversed(coded):  # the first of each kind counts
        steps = document["sizes"]
        bars = {name: _mean([row["bits"][name] for row in steps]) for name in _CODERS}
        bars["XOR + zstd-1"] = _mean([row["bits"]["xor_zstd"] for row in steps])
        bars |= {name: _mean(found["bits"]) for name, found in document.get("peers", {}).get("codecs", {}).items()}
        entropy = _mean([row["entropy_bits"] for row in steps])
        figures[_kind(document)] = {"bars": bars, "entropy": entropy}
    if not figures:
        return None
    figures = dict(sorted(figures.items()))
    return Plot("bits", "Bits a changed cell, mean over steps (dotted: entropy)", figures, _draw_bits)


def _draw_bits(figure: Figure, figures: dict[str, Any]) -> None:
    panels = _panels(figure, figures, max(len(found["bars"]) for found in figures.values()))
    for axes, (name, found) in zip(panels, figures.items(), strict=True):
        _bars(axes, found["bars"], "{:.1f}")
        axes.axvline(found["entropy"], color=_MARK, linestyle=":", linewidth=1.2)
        axes.set_title(name, loc="left", fontsize=10)


def _times(coded: Sequence[dict[str, Any]]) -> Plot | None:
    for document in coded:
        times, codecs = document["times"], document.get("peers", {}).get("codecs", {})
        if "push_core" not in times or not codecs:
            continue
        figures = {}
        for panel, key, what in (("coding", "push_core", "encode_ms"), ("decoding", "stage_apply_core", "decode_ms")):
            bars = {name: times[key][name]["median_ms"] for name in _CODERS}
            bars |= {name: found[what] for name, found in codecs.items() if found[what] is not None}
            figures[f"{panel}, ms"] = bars
        megabytes = document["states"]["bytes"] / 1e6
        title = f"Diff and coding, decoding and applying of {megabytes:,.0f} MB, {_kind(document)} steps (log scale)"
        return Plot("times", title, figures, _draw_times)
    return None


def _draw_times(figure: Figure, figures: dict[str, Any]) -> None:
    panels = _panels(figure, figures, max(map(len, figures.values())))
    for axes, (name, bars) in zip(panels, figures.items(), strict=True):
        axes.set_xscale("log")
        _bars(axes, bars, "{:,.0f}")
        axes.set_title(name, loc="left", fontsize=10)


def _links(document: dict[str, Any]) -> Plot:
    figures = {
        link["name"]: {name: _median(found["seconds"]) for name, found in link["ways"].items()}
        for link in document["links"]
    }
    return Plot("links", "From push's call to the worker's weights changed, seconds (log scale)", figures, _draw_links)


def _draw_links(figure: Figure, figures: dict[str, Any]) -> None:
    panels = _panels(figure, figures, max(map(len, figures.values())))
    for axes, (name, bars) in zip(panels, figures.items(), strict=True):
        axes.set_xscale("log")
        _bars(axes, bars, "{:,.2f}")
        axes.set_title(name, loc="left", fontsize=10)


def _sizes(document: dict[str, Any]) -> Plot | None:
    if not document["sizes"]:
        return None
    figures: dict[str, Any] = {"cells": [size["cells"] for size in document["sizes"]], "lines": {}}
    for role, ours, others in (
        ("trainer", "push: diff + code", "XOR + zstd-1: encode"),
        ("worker", "pull: decode + verify + apply", "XOR + zstd-1: decode"),
    ):
        milliseconds = [size[role]["core_ms"] for size in document["sizes"]]
        against = [size[role]["core_ms"] / size[role]["core"] for size in document["sizes"]]
        line = "--" if role == "worker" else "-"
        figures["lines"][ours] = {"values": milliseconds, "color": _OURS, "line": line}
        figures["lines"][others] = {"values": against, "color": _OTHERS, "line": line}
    return Plot("sizes", f"Time of one step by model size ({document['settings']['coder']}), ms", figures, _draw_sizes)


def _draw_sizes(figure: Figure, figures: dict[str, Any]) -> None:
    figure.set_figheight(4)
    axes = figure.subplots()
    for name, found in figures["lines"].items():
        style = {"color": found["color"], "linestyle": found["line"], "marker": "o", "markersize": 3}
        axes.plot(figures["cells"], found["values"], label=name, **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("cells")
    axes.grid(color="#e5e7eb", linewidth=0.6)
    axes.legend(frameon=False)


def _behind(document: dict[str, Any]) -> Plot:
    rows = document["distances"]
    figures = {
        "distance": [row["distance"] for row in rows],
        "bytes": {
            "chain": [row["chain_bytes"] for row in rows],
            "ladder": [row["bytes"] for row in rows],
            "direct diff": [row["direct_bytes"] for row in rows],
            "keyframe": [document["full_bytes"]] * len(rows),
        },
        "objects": {
            "chain": [row["distance"] for row in rows],
            "ladder, most": [row["most_objects"] for row in rows],
            "2 log2(distance) + 2": [round(2 * math.log2(row["distance"]) + 2, 2) for row in rows],
        },
    }
    title = f"Far behind, {document['states']} steps: bytes and objects to fetch, by versions behind"
    return Plot(f"far-behind-{document['states']}", title, figures, _draw_behind)


def _draw_behind(figure: Figure, figures: dict[str, Any]) -> None:
    figure.set_figheight(4)
    for axes, what in zip(figure.subplots(1, 2), ("bytes", "objects"), strict=True):
        for name, values in figures[what].items():
            color = _OURS if name.startswith("ladder") else _MARK if name == "direct diff" else _OTHERS
            line = ":" if name.startswith(("keyframe", "2 log2")) else "-"
            axes.plot(figures["distance"], values, label=name, color=color, linestyle=line)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2 if what == "objects" else 10)
        axes.set_title(what, loc="left", fontsize=10)
        axes.set_xlabel("versions behind")
        axes.grid(color="#e5e7eb", linewidth=0.6)
        axes.legend(frameon=False, fontsize=9)


def _growth(document: dict[str, Any]) -> Plot | None:
    """What is held against a limit, relative to the smallest size's: a panel a section; what is flat stays at 1."""
    limited = {row["key"] for row in document["rows"] if "limit" in row}
    figures: dict[str, Any] = {}
    for curve in document["curves"]:
        first = curve["points"][0][1]
        if curve["key"] in limited and first > 0 and len(curve["points"]) > 1:
            points = [[size, round(cost / first, 4)] for size, cost in curve["points"]]
            panel = figures.setdefault(curve["key"].partition(".")[0], {"x": curve["x"], "lines": {}})
            panel["lines"][curve["what"]] = points
    if not figures:
        return None
    return Plot("growth", "Costs by size, of the cost at the smallest (log scales)", figures, _draw_growth)


def _draw_growth(figure: Figure, figures: dict[str, Any]) -> None:
    rows = -(-len(figures) // 2)
    figure.set_figheight(4.6 * rows)
    panels = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axes, (name, panel) in zip(panels, figures.items(), strict=False):
        steepest = sorted(panel["lines"].items(), key=lambda line: -line[1][-1][1])
        for number, (what, points) in enumerate(steepest):
            sizes, costs = zip(*points, strict=True)
            color, label = (f"C{number}", what) if number < _NAMED else (_OTHERS, None)
            axes.plot(sizes, costs, label=label, marker="o", markersize=3, color=color, zorder=-number)
        axes.axhline(1, color=_OTHERS, linestyle=":", linewidth=1)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xlabel(panel["x"])
        axes.grid(color="#e5e7eb", linewidth=0.6)
        axes.legend(frameon=False, fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    for axes in panels[len(figures) :]:
        axes.set_axis_off()


def _rewards(document: dict[str, Any]) -> Plot:
    """Mean rewards of the seeds, and what was sent for them: a line a method."""
    made: dict[str, list[dict[str, Any]]] = {}
    for run in document["runs"]:
        made.setdefault(run["method"], []).append(run)
    figures = {
        method: {
            "rounds": [int(at) for at in runs[0]["rewards"]],
            "rewards": [_mean([100 * run["rewards"][at] for run in runs]) for at in runs[0]["rewards"]],
            "sent": sum(_mean(list(sent)) for sent in zip(*(run["nbytes"] for run in runs), strict=True)),
        }
        for method, runs in made.items()
    }
    return Plot("outer-grpo", "GRPO in outer rounds: held-out reward, %, mean of the seeds", figures, _draw_rewards)


def _draw_rewards(figure: Figure, figures: dict[str, Any]) -> None:
    figure.set_figheight(4.5)
    axes = figure.subplots()
    for number, (name, found) in enumerate(figures.items()):
        label = f"{name}: {found['sent'] / 1e6:,.1f} MB a trainer" if found["sent"] else name
        axes.plot(found["rounds"], found["rewards"], label=label, color=f"C{number % 10}")
    axes.set_xlabel("outer rounds, or as many inner steps")
    axes.grid(color="#e5e7eb", linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)


def _panels(figure: Figure, figures: dict[str, Any], bars: int) -> list[Axes]:
    figure.set_figheight(0.9 + 0.3 * bars)
    return list(figure.subplots(1, len(figures), squeeze=False)[0])


def _bars(axes: Axes, bars: dict[str, float], form: str) -> None:
    """Draw horizontal bars, the smallest on top, each with its value; the library's own stand out."""
    names = sorted(bars, key=lambda name: -bars[name])
    colors = [_OURS if name in _CODERS else _OTHERS for name in names]
    drawn = axes.barh(names, [bars[name] for name in names], color=colors, height=0.65)
    axes.bar_label(drawn, [form.format(bars[name]) for name in names], padding=3, fontsize=9)
    axes.margins(x=0.15)
    axes.tick_params(left=False)


def _kind(document: dict[str, Any]) -> str:
    return str(document["states"]["kind"])


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 3)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return round((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2, 4)
