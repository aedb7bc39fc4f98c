"""``pulse promote``: makes a copy of runs their home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pulse_registry.cli.exits import exit_code
from pulse_registry.cli.options import AllowHttp, Json, SigningKeyFile, Token, Trusted
from pulse_registry.cli.output import print_error, print_json, print_table, size
from pulse_registry.cli.session import Access, opened_store
from pulse_registry.client.connect import is_service
from pulse_registry.errors import NotFound, PulseError
from pulse_registry.mirror import Lanes, Mirror, Promoted, Promotion, Site, is_name, matching_runs
from pulse_registry.options import Options
from pulse_registry.quoting import say
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.runtime.runtime import Runtime
from pulse_registry.signing import signer_of, trust_of
from pulse_registry.store import Store
from pulse_schemas import VersionEntry


def promote(
    destination: Annotated[str, typer.Argument(metavar="DST", help="The copy: a folder, or a bucket's URL.")],
    source: Annotated[
        str, typer.Option("--from", metavar="SRC", help="The home that the runs leave: a folder, or a URL.")
    ],
    runs: Annotated[str, typer.Option("--runs", metavar="GLOB", help="Which runs, such as 'math-*'.")],
    lost: Annotated[
        bool,
        typer.Option("--lost", help="SRC is lost: go on from what DST has. When SRC is back, run the same again."),
    ] = False,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    signing_key: SigningKeyFile = None,
    json_output: Json = False,
) -> None:
    """Make the copy of runs in DST their home: from then on they are written there, and at SRC by nobody.

    Nothing is lost: what SRC has is copied to DST first, and its writers are told where to. It may be killed anywhere
    and run again. With --lost, versions that DST has not got are given up, which SRC names once it is back.
    """
    options = Options(signer=signer_of(signing_key), trust=trust_of(trust or None))
    lanes = Lanes()
    outcomes: list[dict[str, Any]] = []
    failed: PulseError | None = None
    try:
        with (
            opened_store(Access(source, token if is_service(source) else None, allow_http)) as there,
            opened_store(Access(destination)) as here,
        ):
            root = here if lost else there
            for run in matching_runs(root, runs):
                done: Promoted | None = None
                with _promotion(here, there, run, options, lanes) as promotion:
                    try:
                        done = promotion.lost() if lost else promotion.planned()
                        outcomes.append(_conclude(promotion, run, source, done, lost=lost, quiet=json_output))
                    except PulseError as error:
                        if done is None and isinstance(error, NotFound) and not is_name(runs):
                            continue
                        failed = failed or error
                        moved = {} if done is None else _document(run, done)
                        outcomes.append({"run": run, **moved, "error": type(error).__name__, "message": str(error)})
                        if not json_output:
                            print_error(type(error).__name__, str(error), json_output=False)
            if not outcomes:
                raise NotFound(f"no run in {root.url} is called {runs}")
    finally:
        lanes.close()
    if json_output:
        print_json({"runs": outcomes})
    if failed is not None:
        raise typer.Exit(exit_code(failed))


@contextmanager
def _promotion(here: Store, there: Store, run: str, options: Options, lanes: Lanes) -> Iterator[Promotion]:
    around = Dependencies()
    runtimes = [Runtime(store, run, options, around) for store in (here, there)]
    try:
        destination, source = (
            Site(one.url, one.stores.store, one.reader, one.writer(), one.outer_log()) for one in runtimes
        )
        yield Promotion(destination, source, lambda: Mirror(there, here, run, lanes=lanes), around.new_id)
    finally:
        for one in runtimes:
            one.end()


def _conclude(
    promotion: Promotion, run: str, source: str, done: Promoted, *, lost: bool, quiet: bool
) -> dict[str, Any]:
    """Say what came of a promotion, fence the home that was lost, and return all that as a document."""
    if not quiet:
        _say(run, done)
    if not lost:
        return _document(run, done)
    if not quiet:
        since = "" if done.moved is None else f" after version {done.moved.version}, of {done.moved.created_at},"
        say(f"run {run}: what {source} has committed{since} is given up")
    abandoned = promotion.fence(done.home)
    if not quiet:
        say(f"run {run}: {source} is fenced; versions given up: {len(abandoned):,}")
        if abandoned:
            print_table(("given up", "step", "created at", "digest"), [_row(entry) for entry in abandoned])
    return _document(run, done) | {"given_up": [entry.version for entry in abandoned]}


def _say(run: str, done: Promoted) -> None:
    newest = "no version yet" if done.latest is None else f"newest version {done.latest.version}"
    copied = f"; {done.copied.objects:,} objects of {size(done.copied.nbytes)} copied" if done.copied.records else ""
    say(f"run {run}: lives at {done.home.to} since record {done.home.seq}, {newest}{copied}")


def _row(entry: VersionEntry) -> tuple[int, int, str, str]:
    return entry.version, entry.step, entry.created_at, entry.digest


def _document(run: str, done: Promoted) -> dict[str, Any]:
    return {
        "run": run,
        "home": done.home.to,
        "record": done.home.seq,
        "move": done.home.move,
        "version": None if done.latest is None else done.latest.version,
        "copied": asdict(done.copied),
    }
