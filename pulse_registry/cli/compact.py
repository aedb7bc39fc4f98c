"""``pulse compact``: makes merged patches and keyframes, so that being far behind stays cheap."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pulse_registry.cli.ending import stops_on_signals
from pulse_registry.cli.exits import exit_code
from pulse_registry.cli.options import AllowHttp, Json, Root, Run, SigningKeyFile, Token, Trusted
from pulse_registry.cli.output import print_error, print_json, size
from pulse_registry.cli.session import Access, open_session
from pulse_registry.compaction import Attached, CompactOptions, Compactor
from pulse_registry.compaction.loop import follow
from pulse_registry.errors import PulseError
from pulse_registry.options import PullOptions
from pulse_registry.process import environment
from pulse_registry.pull.download import spool_of
from pulse_registry.quoting import say


def compact(
    root: Root,
    run: Run,
    follow_: Annotated[bool, typer.Option("--follow", help="Go on as versions are committed, until stopped.")] = False,
    keyframe_every: Annotated[
        int | None, typer.Option(metavar="N", help="A keyframe when the last one is N versions old.")
    ] = None,
    keyframe_share: Annotated[
        float | None,
        typer.Option(metavar="S", help="A keyframe when the patches since exceed this share of its bytes."),
    ] = None,
    spool: Annotated[
        Path | None,
        typer.Option(
            envvar=environment.SPOOL.name,
            metavar="DIR",
            help="For a copy of the weights and a patch; else a temporary folder.",
        ),
    ] = None,
    poll_seconds: Annotated[
        float, typer.Option(metavar="S", min=0.01, help="How often to look for new versions.")
    ] = 5.0,
    token: Token = None,
    allow_http: AllowHttp = False,
    signing_key: SigningKeyFile = None,
    trust: Trusted = None,
    json_output: Json = False,
) -> None:
    """Attach the merged patches that a run lacks, and keyframes by policy. Any number may work on one run.

    The contributions to its outer rounds are merged, too: who joins fetches one object a round.

    Without --follow it ends when there is nothing left to do, and fails if something could not be done. It may be
    stopped at any moment.
    """
    options = CompactOptions(keyframe_every, keyframe_share)
    pull, stop = PullOptions(spool=spool_of(spool)), threading.Event()
    with (
        stops_on_signals(stop),
        open_session(
            Access(root, token, allow_http, trust, signing_key),
            run,
            title=f"compact {run}",
            quiet=json_output or follow_,
            pull=pull,
        ) as session,
    ):
        compactor = session.registry.compactor(options)
        try:
            made = _work(compactor, follow_, stop, poll_seconds, json_output)
        finally:
            compactor.close()
        if follow_:
            return
        left = {str(task): compactor.error(task) for task in compactor.pending()}
    _conclude(made, left, json_output=json_output)


def _conclude(made: list[Attached], left: Mapping[str, PulseError | None], *, json_output: bool) -> None:
    """Say what was made and what was not; end as the first error ends that kept something from being made."""
    error = next(filter(None, left.values()), None)
    nbytes = sum(done.nbytes for done in made)
    if json_output:
        failed = {} if error is None else {"error": type(error).__name__, "message": str(error)}
        print_json({"made": [asdict(done) for done in made], "bytes": nbytes, "left": list(left)} | failed)
    else:
        say(f"{len(made)} objects attached, {size(nbytes)}")
        for task in left:
            say(f"not made: {task}")
        if error is not None:
            print_error(type(error).__name__, str(error), json_output=False)
    if error is not None:
        raise typer.Exit(exit_code(error))


def _work(
    compactor: Compactor, follow_: bool, stop: threading.Event, poll_seconds: float, json_output: bool
) -> list[Attached]:
    made = []
    for done in follow(compactor, stop, poll_seconds if follow_ else None):
        if not follow_:
            made.append(done)  # a process that goes on for months keeps no list
        if follow_ and json_output:
            print_json(asdict(done))
            sys.stdout.flush()
        elif not json_output:
            say(f"{_named(done)}: {size(done.nbytes)}", flush=True)
    return made


def _named(done: Attached) -> str:
    if done.kind == "round":
        return f"merged contributions of outer round {done.target}"
    return f"{done.kind} " + (f"version {done.target}" if done.base is None else f"{done.base} -> {done.target}")
