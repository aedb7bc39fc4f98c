"""``pulse mirror``: keeps copies of runs in another root, byte for byte."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from pulse_registry.cli.ending import stops_on_signals
from pulse_registry.cli.exits import exit_code
from pulse_registry.cli.options import AllowHttp, Json, Token
from pulse_registry.cli.output import print_error, print_json, size
from pulse_registry.cli.session import Access, opened_store
from pulse_registry.client.connect import HasConnections, is_service, open_copies
from pulse_registry.mirror import PART_BYTES, Fleet, Lanes, Outcome, Rate, parse_rate
from pulse_registry.process import environment
from pulse_registry.process.large_buffers import return_large_buffers
from pulse_registry.quoting import say
from pulse_registry.store import Store, open_store


def mirror(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The registry to copy: a folder, or a URL.")],
    destination: Annotated[str, typer.Argument(metavar="DST", help="Where the copy is: a folder, or a URL.")],
    runs: Annotated[str, typer.Option("--runs", metavar="GLOB", help="Which runs, such as 'math-*'.")] = "*",
    follow: Annotated[bool, typer.Option("--follow", help="Go on as records come, until stopped.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read back what the copy has, and send what is damaged there again.")
    ] = False,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="BITS", help="Fetch at most so much a second, such as 2Gbit.")
    ] = None,
    poll_seconds: Annotated[
        float, typer.Option(metavar="S", min=0.01, help="How often to look for new records in a bucket.")
    ] = 0.2,
    token: Token = None,
    copy_token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="For a service as DST, of scope mirror. Better in PULSE_COPY_TOKEN."),
    ] = None,
    allow_http: AllowHttp = False,
    json_output: Json = False,
) -> None:
    """Copy runs to another root: same keys, same bytes, same signatures; objects before the records that name them.

    It may be killed anywhere and started again, here or elsewhere: the copy's own log says where to go on. SRC and DST
    may be services, with a token each. Nobody else can write to the copy.
    """
    return_large_buffers()
    lanes = Lanes(None if rate is None else Rate(parse_rate(rate)))
    stop = threading.Event()
    try:
        with (
            stops_on_signals(stop),
            opened_store(Access(source, token if is_service(source) else None, allow_http)) as there,
            _opened(destination, copy_token, allow_http) as here,
            Fleet(there, here, runs, lanes, verify=verify) as fleet,
        ):
            if follow:
                for outcome in fleet.follow(stop, poll_seconds):
                    _print(outcome, json_output)
                    sys.stdout.flush()
            else:
                _conclude([*fleet.copy()], json_output)
    finally:
        lanes.close()


@contextmanager
def _opened(destination: str, token: str | None, allow_http: bool) -> Iterator[Store]:
    """Open the root of the copies, and close its connections at the end."""
    if not is_service(destination):
        yield open_store(destination, part_bytes=PART_BYTES)
        return
    token = environment.COPY_TOKEN.read() if token is None else token
    store = open_copies(destination, token, allow_http=allow_http)
    try:
        yield store
    finally:
        if isinstance(store, HasConnections):
            store.close()


def _conclude(outcomes: list[Outcome], json_output: bool) -> None:
    """Say what was copied; end as the first run ends that could not be."""
    if json_output:
        print_json({"runs": [_document(outcome) for outcome in outcomes]})
    else:
        for outcome in outcomes:
            _print(outcome, json_output)
    failed = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
    if failed is not None:
        raise typer.Exit(exit_code(failed))


def _document(outcome: Outcome) -> dict[str, Any]:
    if outcome.copied is not None:
        return {"run": outcome.run, **asdict(outcome.copied)}
    return {"run": outcome.run, "error": type(outcome.error).__name__, "message": str(outcome.error)}


def _print(outcome: Outcome, json_output: bool) -> None:
    if json_output:
        print_json(_document(outcome))
    elif outcome.copied is not None:
        done = outcome.copied
        say(
            f"run {outcome.run}: record {done.seq} of {done.source_seq}; {done.records:,} records and {done.objects:,} "
            f"objects of {size(done.nbytes)} copied, {done.present:,} were there"
        )
        for key in done.blocked:
            say(f"run {outcome.run}: not copied, and so no record that names it: {key}", error=True)
    elif outcome.error is not None:
        print_error(type(outcome.error).__name__, str(outcome.error), json_output=False)
