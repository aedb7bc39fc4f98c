"""The chart of a run of outer rounds: who was there when, bytes beside dense ones, density, and the reward."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from pulse_registry.demo.canvas import FAINT, LINES, canvas, whole_ticks
from pulse_registry.demo.outer.board import Board
from pulse_registry.demo.outer.settings import TRAINERS, WORKERS, Settings

_COLORS = dict(zip((*TRAINERS, *WORKERS), LINES, strict=True))
_MARKS = {"started": ">", "stopped": "s", "resumed": ">", "killed": "X", "returned": ">"}
_AWAY = ("stopped", "killed")


def draw(board: Board, settings: Settings, path: Path) -> None:
    """Draw the chart into a PNG file."""
    seconds = board.seconds(board.ended or board.began)
    title = (
        f"{Path(settings.model).name}: {board.cells / 1e6:,.1f} M trained cells, {board.round} outer rounds of "
        f"{settings.inner_steps} GRPO steps by {len(TRAINERS)} trainers, in {seconds:.0f} s"
    )
    with canvas(path, title) as panels:
        _presence_panel(panels[0, 0], board)
        _bytes_panel(panels[0, 1], board)
        _density_panel(panels[1, 0], board)
        _reward_panel(panels[1, 1], board)


def _presence_panel(axes: Any, board: Board) -> None:
    """Draw who was there when; a dot is a round's step, or a pull."""
    names = [*TRAINERS, *WORKERS]
    for place, name in enumerate(reversed(names)):
        color, changes = _COLORS[name], [one for one in board.changes if one.trainer == name]
        spans = [(board.seconds(one.at), one.change) for one in changes]
        end = board.seconds(board.trained[name].at if name in board.trained else board.ended or board.began)
        for (at, change), (until, _) in pairwise([*spans, (end, "")]):
            width, shade = (2, FAINT) if change in _AWAY else (6, color)
            axes.plot([at, until], [place, place], color=shade, linewidth=width, solid_capstyle="butt", alpha=0.6)
            axes.plot(at, place, _MARKS[change], color=color, markersize=7)
        done = [*board.rounds.get(name, ()), *board.pulls.get(name, ())]
        times = [board.seconds(one.at) for one in done]
        axes.plot(times, [place] * len(times), "o", color="white", mec=color, markersize=4.5)
    axes.set_yticks(range(len(names)), names[::-1])
    axes.set_title("Who was there when (square: stopped, cross: killed)")
    axes.set_xlabel("seconds since the start")


def _bytes_panel(axes: Any, board: Board) -> None:
    dense = 4 * board.cells / 1e6
    for name in TRAINERS:
        sent = [(one.round, one.nbytes / 1e6) for one in board.rounds.get(name, ()) if one.nbytes]
        axes.plot(*zip(*sent, strict=True), "o-", color=_COLORS[name], markersize=4, linewidth=1, label=name)
    axes.axhline(dense, color="#c2410c", linewidth=1.6, linestyle="--")
    axes.text(1, dense * 1.2, f"dense FP32: {dense:,.2f} MB", color="#c2410c")
    axes.set_yscale("log")
    axes.set_ylim(top=dense * 5)
    axes.set_title("Bytes that a trainer sent a round (log scale)")
    axes.set_xlabel("round")
    axes.set_ylabel("MB")
    axes.legend(loc="center right", fontsize=9)
    whole_ticks(axes.xaxis)


def _density_panel(axes: Any, board: Board) -> None:
    for name in TRAINERS:
        rounds = board.rounds.get(name, ())
        densities = [100 * one.entries / max(1, one.cells) for one in rounds]
        axes.plot([one.round for one in rounds], densities, "o-", color=_COLORS[name], markersize=4, label=name)
    axes.set_title("Density: cells that a trainer sent")
    axes.set_xlabel("round")
    axes.set_ylabel("% of all")
    axes.set_ylim(bottom=0)
    whole_ticks(axes.xaxis)


def _reward_panel(axes: Any, board: Board) -> None:
    for name in TRAINERS:
        rounds = board.rounds.get(name, ())
        axes.plot([one.round for one in rounds], [one.reward for one in rounds], "o", color=_COLORS[name], markersize=4)
    means = {}
    for number in range(1, board.round + 1):
        found = [one.reward for rounds in board.rounds.values() for one in rounds if one.round == number]
        if found:
            means[number] = sum(found) / len(found)
    axes.plot([*means], [*means.values()], color="#1f2933", linewidth=1.5, label="mean")
    axes.set_title("Reward of each trainer's completions")
    axes.set_xlabel("round")
    axes.set_ylabel("mean reward")
    axes.legend(loc="lower right", fontsize=9)
    whole_ticks(axes.xaxis)
