"""How ``pulse workers`` shows workers: a table, a terminal's screen that is drawn again, or a line for each change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Self

from pulse_registry.cli.output import print_json, size, table_of
from pulse_registry.errors import StoreUnavailable
from pulse_registry.quoting import printable, say
from pulse_schemas.api import WorkerBody

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

COLUMNS: Final = ("worker", "behind", "version", "cells", "pause", "pull", "bytes", "avoided", "reported at", "token")
"""The first ones are those that a narrow terminal shows, too."""
_FRAME_LINES: Final = 8
"""Of a screen, those that are no workers: the heading, the table's head and edges, what is below it, the cursor's."""
_CELLS: Final = {True: "match", False: "DIFFER", None: None}
"""Whether a worker's cells are its version's; none where that version is not known."""

Name = tuple[str, str]


def furthest_first(workers: Iterable[WorkerBody]) -> list[WorkerBody]:
    """Return workers in order: those whose cells are not their version's, then those furthest behind."""
    return sorted(workers, key=lambda one: (one.digest_matches is not False, -one.staleness, one.worker, one.token))


def row_of(worker: WorkerBody) -> tuple[Any, ...]:
    """Return a worker as a row of ``COLUMNS``."""
    return (
        worker.worker,
        worker.staleness,
        worker.version,
        _CELLS[worker.digest_matches],
        _seconds(worker.pause_s),
        _seconds(worker.seconds or None),
        size(worker.nbytes) if worker.nbytes else None,
        len(worker.avoided),
        worker.reported_at,
        worker.token or None,
    )


def standing(run: str, workers: Iterable[WorkerBody]) -> str:
    """Return how the workers of a run stand, in a line."""
    workers = tuple(workers)
    if not workers:
        return f"{run}: no worker has reported of late"
    newest = max(one.version + one.staleness for one in workers)
    at_it, last = sum(not one.staleness for one in workers), max(one.staleness for one in workers)
    differ = sum(one.digest_matches is False for one in workers)
    wrong = f"{differ:,} DIFFER from their version's cells; " if differ else ""
    behind = f", the last one {last:,} behind" if last else ""
    return f"{run}: {wrong}version {newest}; {len(workers):,} workers, {at_it:,} of them at it{behind}"


class WorkerScreen:
    """Workers on a terminal: as many as it has lines, with the columns that it has room for. A context manager."""

    def __init__(self, run: str, console: Console) -> None:
        """Prepare to draw on a terminal."""
        from rich.live import Live

        self._run, self._console = run, console
        self._workers: tuple[WorkerBody, ...] = ()
        self._live = Live(console=self._console, auto_refresh=False)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._open.enter_context(self._live)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave what was drawn last, and the terminal as it was."""
        self._open.close()

    def show(self, workers: tuple[WorkerBody, ...]) -> None:
        """Draw them."""
        self._workers = workers
        self._draw(None)

    def away(self, error: StoreUnavailable) -> None:
        """Say below what was drawn last that it may be old."""
        self._draw(f"no answer, and this is from before: {error}")

    def _draw(self, note: str | None) -> None:
        self._live.update(self._drawn(note), refresh=True)

    def _drawn(self, note: str | None) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        def line(text: str) -> Text:
            text = printable(text, self._console.encoding)
            return Text(text, no_wrap=True, overflow="ellipsis")

        ranked = furthest_first(self._workers)
        room = max(1, self._console.height - _FRAME_LINES)
        shown = ranked[:room]
        parts: list[RenderableType] = [line(standing(self._run, ranked))]
        if shown:
            parts.append(table_of(COLUMNS, [row_of(one) for one in shown], width=self._console.width))
        if len(ranked) > room:
            parts.append(line(f"and {len(ranked) - room:,} more, no further behind"))
        if note is not None:
            parts.append(line(note))
        return Group(*parts)


class WorkerLines:
    """Workers as lines: one for each that is new, that tells of something new, or that is gone. A context manager."""

    def __init__(self, *, json_output: bool) -> None:
        """Begin with none; ``json_output``: each line is a JSON document."""
        self._json = json_output
        self._told: Mapping[Name, WorkerBody] = {}

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def show(self, workers: tuple[WorkerBody, ...]) -> None:
        """Print what is new since the last time."""
        now = {(one.worker, one.token): one for one in workers}
        for name, one in self._told.items():
            if name not in now:
                self._print(one, gone=True)
        for name, one in now.items():
            if not _same(self._told.get(name), one):
                self._print(one, gone=False)
        self._told = now

    def away(self, error: StoreUnavailable) -> None:
        """Say it on stderr."""
        say(f"pulse: {error}; asked again", error=True, flush=True)

    def _print(self, worker: WorkerBody, *, gone: bool) -> None:
        if self._json:
            print_json({"gone": gone, **worker.model_dump()}, flush=True)
            return
        paused = "" if worker.pause_s is None else f", paused {_seconds(worker.pause_s)}"
        wrong = "" if worker.digest_matches is not False else ", its cells DIFFER from that version's"
        what = "gone" if gone else f"version {worker.version}, {worker.staleness:,} behind{paused}{wrong}"
        say(f"{worker.reported_at}  {worker.worker}: {what}", flush=True)


def _same(told: WorkerBody | None, now: WorkerBody) -> bool:
    """Tell whether a worker told of nothing new: that the run went on, or that it lives, is no news of it."""
    ours = {"staleness": now.staleness, "reported_at": now.reported_at}
    return told is not None and told.model_copy(update=ours) == now


def _seconds(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
