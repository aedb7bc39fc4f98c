"""The live display: tables that follow the run on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pulse_registry.demo.board import Board, WorkerState, stage_seconds
from pulse_registry.demo.messages import Checked, Event, Loaded, Published, Pulled, Sharded, Stepped, Trained
from pulse_registry.demo.settings import LATE
from pulse_registry.quoting import printable

_ROWS = 14


class Display:
    """Shows a board while it fills. A context manager: the terminal is as it was at its end."""

    def __init__(self, console: Console, board: Board) -> None:
        self._console = console
        self._board = board
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def show(self, event: Event | None) -> None:
        """Show what has changed; ``event`` is None when time alone has passed."""
        if self._live is not None:
            self._live.update(Group(*tables(self._board, _ROWS)))
            self._live.refresh()
        elif event is not None:
            line = line_of(self._board, event)
            if line is not None:
                self._console.print(printable(f"{self._board.seconds:6.1f} s  {line}"), highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()


def tables(board: Board, rows: int | None = None) -> list[RenderableType]:
    """Return all that is shown of a run; of its versions, the newest ``rows``."""
    ranks = [ranks_table(board)] if board.settings.ranks > 1 else []
    return [heading(board), versions_table(board, rows), workers_table(board), *ranks]


def heading(board: Board) -> RenderableType:
    """Return what the run is about, and how far it is."""
    if board.loaded is None:
        what = printable(f"loading {board.settings.source.name}")
    else:
        what = printable(f"{board.settings.source.name}, {board.loaded.parameters:,} parameters")
    how = "done" if board.trained is not None else f"step {len(board.stepped)} of {board.settings.steps}"
    return Text.assemble(("Pulse Registry", "bold"), f"  {what}  ·  {how}  ·  {board.seconds:.0f} s")


def versions_table(board: Board, rows: int | None = None) -> Table:
    """Return the versions: what each was worth, and what it cost; the newest ``rows`` of them."""
    table = _table("Versions (times of the push, in ms)")
    for name in ("version", "reward", "right", "changed", "bytes", "of full", "diff", "code", "upload", "commit"):
        table.add_column(name, justify="right", no_wrap=True)
    for number in sorted(board.published)[-rows if rows else 0 :]:
        entry = board.published[number]
        stepped = board.stepped.get(entry.step)
        table.add_row(
            str(number),
            f"{stepped.reward:.3f}" if stepped else "",
            f"{stepped.right:.0%}" if stepped else "",
            f"{100 * entry.changed / entry.cells:.3f} %" if entry.kind == "patch" else "all",
            size(entry.nbytes),
            f"1/{entry.full_nbytes / entry.nbytes:,.0f}",
            *(number_of_milliseconds(entry.phases.get(phase)) for phase in ("diff", "code", "upload", "commit")),
            style=None if entry.kind == "patch" else "cyan",
        )
    return table


def workers_table(board: Board) -> Table:
    """Return the workers: where each is, and what its last pull was."""
    table = _table("Workers (times of the last pull, in ms)")
    for name in ("worker", "version", "behind", "pulls", "last pull", "bytes", "stage", "apply", "answers"):
        table.add_column(name, justify="left" if name == "worker" else "right", no_wrap=True)
    for name in board.settings.worker_names:
        state = board.workers.get(name)
        if state is None or state.version is None:
            waits = f"joins at {board.settings.late_after}" if name == LATE else "starting"
            table.add_row(name, "", "", "", waits, style="dim")
            continue
        table.add_row(*_worker_cells(board, state), style="green" if state.checked is not None else None)
    return table


def ranks_table(board: Board) -> Table:
    """Return the ranks: which part of the weights each holds, what it has fetched in all, and what was compared."""
    table = _table("Ranks (of the trainer, and of a worker that holds slices)")
    for name in ("rank", "", "holds", "of all", "fetched", "checked"):
        table.add_column(name, justify="left" if name in ("rank", "", "checked") else "right", no_wrap=True)
    for name in (*board.settings.trainer_names, *board.settings.sharded_names):
        if name not in board.shards:
            table.add_row(name, "", "", "", "starting", "", style="dim")
            continue
        shard = board.shards[name]
        pulls = [pulled for _, pulled in board.workers[name].pulls] if name in board.workers else []
        table.add_row(
            name,
            _place(shard),
            size(shard.nbytes),
            f"{100 * shard.nbytes / board.full_nbytes:.1f} %" if board.full_nbytes else "",
            size(sum(pulled.nbytes for pulled in pulls)) if pulls else "",
            ", ".join(sorted({pulled.checked for pulled in pulls})),
        )
    return table


def _place(shard: Sharded) -> str:
    return f"rank {shard.rank} of {shard.ranks}"


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )


def _worker_cells(board: Board, state: WorkerState) -> list[str]:
    last = state.pulls[-1][1]
    return [
        state.name,
        str(last.version),
        str(board.newest - last.version),
        str(len(state.pulls)),
        _way(last),
        size(last.nbytes),
        number_of_milliseconds(stage_seconds(last)),
        number_of_milliseconds(last.phases.get("apply")),
        str(state.completions) if state.completions else "",
    ]


def line_of(board: Board, event: Event) -> str | None:
    """Return an event as one line, or None if it is not worth one."""
    match event:
        case Loaded():
            return f"trainer: {board.settings.source.name}, {event.parameters:,} parameters, in {event.seconds:.1f} s"
        case Sharded():
            return f"{event.process}: {_place(event)}, holds {event.cells:,} cells, {size(event.nbytes)}"
        case Stepped():
            waited, behind = event.seconds["wait"], max(event.staleness)
            return (
                f"trainer: step {event.step}: reward {event.reward:.3f}, {event.right:.0%} right, at most {behind} "
                f"behind; waited {waited:.1f} s, learned {event.seconds['learn']:.1f} s, "
                f"stepped {event.seconds['optimizer']:.1f} s"
            )
        case Published():
            changed = "all cells" if event.kind == "keyframe" else f"{100 * event.changed / event.cells:.3f} % changed"
            times = ", ".join(f"{phase} {milliseconds(seconds)}" for phase, seconds in event.phases.items())
            return (
                f"trainer: version {event.version}: {changed}, {size(event.nbytes)} "
                f"({event.full_nbytes / event.nbytes:,.0f} x less than full weights); {times}"
            )
        case Pulled():
            return (
                f"{event.worker}: version {_way(event)}, {size(event.nbytes)}; "
                f"staged {milliseconds(stage_seconds(event))}, applied {milliseconds(event.phases.get('apply'))}"
            )
        case Checked():
            return f"{event.worker}: done, at version {event.version}; SHA-256 {event.sha256[:16]}"
        case Trained():
            return f"trainer: done, at version {event.version}"
        case _:
            return None


def _way(pulled: Pulled) -> str:
    return f"{'none' if pulled.before is None else pulled.before} -> {pulled.version}"


def size(nbytes: float) -> str:
    """Return bytes for people."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:,.2f} {unit}" if nbytes < 100 * scale else f"{nbytes / scale:,.0f} {unit}"
    return f"{nbytes:.0f} B"


def milliseconds(seconds: float | None) -> str:
    """Return a time for people."""
    return f"{number_of_milliseconds(seconds)} ms"


def number_of_milliseconds(seconds: float | None) -> str:
    """Return a time for people, without its unit; nothing for what did not happen."""
    if seconds is None:
        return ""
    return f"{1e3 * seconds:,.1f}" if seconds < 0.01 else f"{1e3 * seconds:,.0f}"
