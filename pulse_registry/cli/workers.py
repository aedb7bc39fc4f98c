"""``pulse workers``: who pulls a run, as workers tell the service."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Protocol

import typer

from pulse_registry.cli.ending import interrupts
from pulse_registry.cli.options import AllowHttp, Json, Root, Run, Token
from pulse_registry.cli.output import console_of, print_json, print_table
from pulse_registry.cli.session import Access, opened_store
from pulse_registry.cli.worker_views import COLUMNS, WorkerLines, WorkerScreen, furthest_first, row_of, standing
from pulse_registry.client.workers import ListsWorkers
from pulse_registry.errors import InvalidArgument, StoreUnavailable
from pulse_registry.log.names import run_name
from pulse_registry.quoting import say
from pulse_registry.store.wrappers.retry import RetryPolicy
from pulse_schemas.api import WorkerBody

EVERY_S = 2.0
"""Between two looks at the list: a service makes that of thousands of workers no more often."""


class View(Protocol):
    """What shows workers to somebody."""

    def show(self, workers: tuple[WorkerBody, ...]) -> None:
        """Show them as they are now."""
        ...

    def away(self, error: StoreUnavailable) -> None:
        """Say that the service does not answer; what was shown may be old."""
        ...


def workers(
    root: Root,
    run: Run,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Go on until interrupted: as a table on a terminal, else a line for each change."
        ),
    ] = False,
    token: Token = None,
    allow_http: AllowHttp = False,
    json_output: Json = False,
) -> None:
    """List the workers that told the service of late which version they serve; those furthest behind come first."""
    run = run_name(run)
    with opened_store(Access(root, token, allow_http)) as store:
        service = store.gateway()
        if not isinstance(service, ListsWorkers):
            raise InvalidArgument(
                f"{root.partition('?')[0]} is no service: workers report to one, and a bucket knows nothing of them"
            )
        ask = partial(service.workers, run)
        found = RetryPolicy()(ask)
        if follow:
            with interrupts(lambda: None, lambda: False), _view(run, json_output=json_output) as view:
                view.show(found)
                for _ in watch(ask, view):
                    pass
            return
    ranked = furthest_first(found)
    if json_output:
        print_json([worker.model_dump() for worker in ranked])
    elif not ranked:
        say(standing(run, ranked))
    else:
        print_table(COLUMNS, [row_of(worker) for worker in ranked])


def watch(
    ask: Callable[[], tuple[WorkerBody, ...]], view: View, sleep: Callable[[float], object] = time.sleep
) -> Iterator[None]:
    """Show the workers now and then, and yield after each look; while the service is away, the view says so.

    Raises:
        What ``ask`` does, but for StoreUnavailable.
    """
    while True:
        sleep(EVERY_S)
        try:
            view.show(ask())
        except StoreUnavailable as error:
            view.away(error)
        yield


def _view(run: str, *, json_output: bool) -> WorkerLines | WorkerScreen:
    console = console_of()
    drawn = console.is_terminal and not console.is_dumb_terminal and sys.stdout.isatty() and not json_output
    return WorkerScreen(run, console) if drawn else WorkerLines(json_output=json_output)
