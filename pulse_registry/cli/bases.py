"""``pulse bases``: lists the shared bases of a root, and deletes those that no run needs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pulse_registry.bases.collector import BaseCollector, SharedBase
from pulse_registry.cli.options import Json, Root, parse_duration
from pulse_registry.cli.output import print_json, print_table, size
from pulse_registry.cli.session import Access, opened_store
from pulse_registry.process.parallel import parallel_map
from pulse_registry.quoting import say
from pulse_registry.store import RetryStore

_THREADS = 16
_SHOWN = 3


def bases(
    root: Root,
    grace: Annotated[str, typer.Option(metavar="TIME", help="Delete what was closed longer ago than this.")] = "1h",
    delete: Annotated[
        bool, typer.Option("--delete", "--yes", help="Do it. Without this, only the plan is shown.")
    ] = False,
    json_output: Json = False,
) -> None:
    """List the shared bases of a root and the runs that refer to them; with --delete, delete those without any.

    A base that no run refers to is closed first, and deleted by a later call, after the grace time.
    """
    seconds = parse_duration(grace).total_seconds()
    with opened_store(Access(root)) as store, parallel_map(_THREADS, "pulse-bases") as each:
        found = BaseCollector(RetryStore(store), each=each).collect(seconds, dry_run=not delete)
    if json_output:
        print_json([_document(base) for base in found])
        return
    rows = [(base.id, base.files, size(base.nbytes), _runs(base), _standing(base, delete)) for base in found]
    print_table(("base", "files", "bytes", "runs", ""), rows)
    for base in found:
        for run in base.unborn:
            say(f"run {run} refers to {base.id} and has no log: if it never will, delete {run}/bases/{base.id}")
    if any(base.due for base in found) and not delete:
        say("nothing was done; --delete does it")


def _document(base: SharedBase) -> dict[str, Any]:
    return {
        "base": base.id,
        "files": base.files,
        "bytes": base.nbytes,
        "runs": list(base.runs),
        "unborn": list(base.unborn),
        "closed": None if base.closed is None else base.closed.isoformat(),
        "due": base.due,
    }


def _runs(base: SharedBase) -> str:
    more = len(base.runs) - _SHOWN
    named = ", ".join(base.runs[:_SHOWN])
    return f"{len(base.runs):,}: {named}{f' and {more:,} more' if more > 0 else ''}" if base.runs else "none"


def _standing(base: SharedBase, done: bool) -> str:
    if base.due is not None:
        return base.due if done else f"would be {base.due}"
    return "" if base.closed is None else "closed"
