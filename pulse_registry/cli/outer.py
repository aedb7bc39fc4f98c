"""``pulse outer``: the outer rounds of a run: what was said in them, who is there, and whether they are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from pulse_registry.cli.exits import exit_code
from pulse_registry.cli.options import AllowHttp, Json, Root, Run, SigningKeyFile, Token, Trusted
from pulse_registry.cli.output import print_json, print_table, size
from pulse_registry.cli.session import Access, open_runtime
from pulse_registry.errors import Diverged, NotFound
from pulse_registry.outer.replay import Replayed
from pulse_registry.outer.report import outer_body
from pulse_registry.quoting import say
from pulse_registry.runtime.outer import OuterRun
from pulse_registry.runtime.runtime import Runtime
from pulse_schemas.api import MemberBody, OuterBody, RoundBody
from pulse_schemas.outer import OuterRecord

outer = typer.Typer(help="Show and check the outer rounds of a run, or let them begin anew.", no_args_is_help=True)
_ALL = 2**31


@outer.command("log")
def log(
    root: Root,
    run: Run,
    records: Annotated[
        bool, typer.Option("--records", help="List the records, and why some of them count for nothing.")
    ] = False,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    json_output: Json = False,
) -> None:
    """List the rounds, oldest first: who contributed, who was late, and how much."""
    with open_runtime(Access(root, token, allow_http, trust), run, title="log", quiet=json_output) as runtime:
        if records:
            found = [_record(record, void) for record, void in OuterRun(runtime).log(whole=True).follow()]
            if not found:
                raise NotFound(f"run {runtime.run!r} has no outer rounds")
        else:
            body = _body(runtime)
    if records:
        _show_records(found, json_output=json_output)
    elif json_output:
        print_json([_round(one, body.cells) for one in (*body.rounds, body.open)])
    else:
        print_table(
            ("round", "version", "ended", "contributed", "late", "entries", "density", "bytes"),
            [_row(one, body.cells) for one in (*body.rounds, body.open)],
        )


@outer.command("members")
def members(
    root: Root,
    run: Run,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    json_output: Json = False,
) -> None:
    """List the members: how each stands to the open round, and what it contributed last."""
    with open_runtime(Access(root, token, allow_http, trust), run, title="members", quiet=json_output) as runtime:
        body = _body(runtime)
    if json_output:
        print_json([_member(one) for one in body.members])
        return
    print_table(
        ("member", "standing", "since", "missed", "last round", "entries", "bytes", "at", "term"),
        [
            (
                one.member,
                one.standing,
                one.since,
                one.missed,
                one.last_round,
                None if one.last is None else one.last.entries,
                None if one.last is None else size(one.last.nbytes),
                None if one.last is None else one.last.created_at,
                one.term,
            )
            for one in body.members
        ],
    )


@outer.command("verify")
def verify(
    root: Root,
    run: Run,
    begin: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="ROUND", help="Begin at the checkpoint of this round, not at the first that is kept."
        ),
    ] = None,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    json_output: Json = False,
) -> None:
    """Make all rounds anew from their contributions, and compare each with its version, and its checkpoint.

    Takes 12 bytes of memory a cell, and no GPU. Ends at the first round that differs, with exit code 5.
    """
    done = list[Replayed]()
    with open_runtime(Access(root, token, allow_http, trust), run, title="verify", quiet=json_output) as runtime:
        for one in OuterRun(runtime).replay(begin):
            done.append(one)
            if one.differs:
                break
    differs = next((one for one in done if one.differs), None)
    if json_output:
        first = None if differs is None else differs.round
        print_json({"verified": differs is None, "differs": first, "rounds": [_replayed(one) for one in done]})
    else:
        _show_replayed(done, differs)
    if differs is not None:
        raise typer.Exit(exit_code(Diverged()))


@outer.command("restart")
def restart(
    root: Root,
    run: Run,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    signing_key: SigningKeyFile = None,
    json_output: Json = False,
) -> None:
    """Let rounds begin anew from the newest version, after somebody else has pushed it: members join again.

    The outer optimizer's momentum is 0 then. What led to earlier rounds is retired, so that they can't be verified any
    more; their versions stay. Nothing happens if no round has ended since the last time.
    """
    access = Access(root, token, allow_http, trust, signing_key)
    with open_runtime(access, run, title="restart", quiet=json_output) as runtime:
        record = OuterRun(runtime).restart()
    if json_output:
        print_json({"restarted": record is not None, "round": None if record is None else record.round})
    elif record is None:
        say(f"run {run}: its rounds began anew from the newest version before")
    else:
        say(f"run {run}: rounds begin anew after round {record.round}: members can join again")


def _body(runtime: Runtime) -> OuterBody:
    rounds = OuterRun(runtime)
    state = rounds.log(whole=True).refresh()
    return outer_body(state, rounds.cells(), _ALL)


def _row(one: RoundBody, cells: int | None) -> Sequence[Any]:
    said = _round(one, cells)
    share = None if said["density"] is None else f"{100 * said['density']:.3g} %"
    names = [" ".join(said[name]) or None for name in ("contributed", "late")]
    return (one.round, one.version, "yes" if one.ended else "no", *names, said["entries"], share, size(said["bytes"]))


def _round(one: RoundBody, cells: int | None) -> dict[str, Any]:
    entries = sum(part.entries for part in one.parts)
    return {
        "round": one.round,
        "version": one.version,
        "ended": one.ended,
        "contributed": [part.member for part in one.parts],
        "late": list(one.late),
        "entries": entries,
        "density": entries / (cells * len(one.parts)) if cells and one.parts else None,
        "bytes": sum(part.nbytes for part in one.parts),
    }


def _member(one: MemberBody) -> dict[str, Any]:
    return {
        "member": one.member,
        "term": one.term,
        "standing": one.standing,
        "since": one.since,
        "missed": one.missed,
        "last_round": one.last_round,
        "entries": None if one.last is None else one.last.entries,
        "bytes": None if one.last is None else one.last.nbytes,
        "at": None if one.last is None else one.last.created_at,
    }


def _record(record: OuterRecord, void: str | None) -> dict[str, Any]:
    named = getattr(record, "object", None)
    return {
        "seq": record.seq,
        "kind": record.kind,
        "member": getattr(record, "member", None),
        "round": getattr(record, "round", None),
        "entries": getattr(record, "entries", None),
        "bytes": None if named is None else named.size,
        "created_at": record.created_at,
        "void": void,
    }


def _show_records(found: Sequence[dict[str, Any]], *, json_output: bool) -> None:
    if json_output:
        print_json(found)
        return
    columns = ("seq", "kind", "member", "round", "entries", "bytes", "created_at", "void")
    print_table(
        [column.replace("_", " ") for column in columns],
        [[one[column] for column in columns] for one in found],
    )


def _replayed(one: Replayed) -> dict[str, Any]:
    return {
        "round": one.round,
        "version": one.version,
        "contributions": one.contributions,
        "digest": one.digest,
        "committed": one.committed,
        "checkpoint": one.checkpoint,
        "merged": one.merged,
    }


def _show_replayed(done: Sequence[Replayed], differs: Replayed | None) -> None:
    compared = sum(one.committed is not None for one in done)
    if differs is None:
        say(f"{len(done):,} rounds were made anew, and {compared:,} versions are what they came to")
        return
    if differs.merged is False:
        say(f"round {differs.round}: its contributions add up to something else than its merged one")
        return
    if differs.committed in (None, differs.digest):
        say(f"round {differs.round} comes to other weights or momentum than its checkpoint tells of")
        return
    say(
        f"round {differs.round} comes to digest {differs.digest}, and version {differs.version} has "
        f"{differs.committed}: the first of {compared:,} that differs"
    )
