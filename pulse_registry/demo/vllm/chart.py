"""The chart of a run with engines: who held which version when, pauses, how old tokens were, and the reward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pulse_registry.demo.canvas import FAINT, LINES, canvas, whole_ticks
from pulse_registry.demo.vllm.board import Board


def draw(board: Board, model: str, path: Path) -> None:
    """Draw the chart into a PNG file."""
    tokens = sum(len(completion.tokens_at) for completion in board.completions)
    streamed = f"{len(board.completions)} completions ({tokens:,} tokens) streamed meanwhile"
    title = f"{model}: {board.newest} GRPO steps, followed by {len(board.serving)} vLLM servers; {streamed}"
    with canvas(path, title) as panels:
        _versions_panel(panels[0, 0], board)
        _pauses_panel(panels[0, 1], board)
        _staleness_panel(panels[1, 0], board)
        _reward_panel(panels[1, 1], board)


def _versions_panel(axes: Any, board: Board) -> None:
    end = board.seconds(board.ended or board.began)
    made = sorted((board.seconds(version.at), number) for number, version in board.versions.items())
    times, numbers = [at for at, _ in made], [number for _, number in made]
    axes.step([*times, end], [*numbers, numbers[-1]], where="post", color=FAINT, linewidth=7, label="committed")
    for color, (name, serving) in zip(LINES, board.serving.items(), strict=False):
        changes = [(board.seconds(change.at), change.version) for change in board.followed[name]]
        held = [(board.seconds(serving.at), serving.version), *changes]
        places = [version for _, version in held]
        axes.step([*(at for at, _ in held), end], [*places, places[-1]], where="post", color=color, label=name)
        axes.plot([at for at, _ in held], places, "o", color=color, markersize=3.5)
    axes.set_title("Version that each engine serves")
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel("version")
    axes.legend(loc="upper left", fontsize=9)
    whole_ticks(axes.yaxis)


def _pauses_panel(axes: Any, board: Board) -> None:
    for color, (name, changes) in zip(LINES, board.followed.items(), strict=False):
        pauses = [1e3 * change.pause_s for change in changes]
        axes.plot([change.version for change in changes], pauses, "o", color=color, markersize=5, label=name)
    axes.set_title("Pause of an engine for a new version, by HTTP")
    axes.set_xlabel("version")
    axes.set_ylabel("ms")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", fontsize=9)
    whole_ticks(axes.xaxis)


def _staleness_panel(axes: Any, board: Board) -> None:
    counts = board.staleness()
    places = range(max([*counts, 2]) + 1)
    bars = axes.bar(places, [counts.get(place, 0) for place in places], color=LINES[0], width=0.6)
    axes.bar_label(bars, fontsize=9, padding=2)
    axes.set_title("Staleness: how old the weights were that made a token")
    axes.set_xlabel("versions behind the newest one when the token came")
    axes.set_ylabel("streamed tokens")
    axes.margins(y=0.12)
    whole_ticks(axes.xaxis)


def _reward_panel(axes: Any, board: Board) -> None:
    steps = sorted(board.rewards)
    axes.plot(steps, [board.rewards[step] for step in steps], "o-", color=LINES[1], markersize=3.5)
    axes.set_title("Reward of the trainer's completions")
    axes.set_xlabel("step")
    axes.set_ylabel("mean reward")
    whole_ticks(axes.xaxis)
