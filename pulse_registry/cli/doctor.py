"""``pulse doctor``: examines whether a store keeps its contract, and whether a run in it is whole."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Annotated

import typer

from pulse_registry.cli.audited import audit_run, defects_code, print_defects, verdict
from pulse_registry.cli.exits import UNSAFE
from pulse_registry.cli.options import AllowHttp, Json, Root, Token
from pulse_registry.cli.output import print_json, print_table
from pulse_registry.cli.session import Access, opened_store
from pulse_registry.doctor import Examination, Finding, Plan, Report, remove_leftovers
from pulse_registry.errors import InvalidArgument, NotFound
from pulse_registry.log.names import run_name
from pulse_registry.quoting import say
from pulse_registry.roots import roots_of
from pulse_registry.store import Store


def doctor(
    root: Root,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="How often writers race for a key.")] = 20,
    racers: Annotated[int, typer.Option(min=2, max=512, help="How many writers race.")] = 32,
    run: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="Only look what a run lacks, and what would restore it.")
    ] = None,
    clean: Annotated[bool, typer.Option("--clean", help="Only remove what killed examinations left behind.")] = False,
    token: Token = None,
    allow_http: AllowHttp = False,
    json_output: Json = False,
) -> None:
    """Examine a store: may several writers share it, do signed URLs hold, how fast is it.

    Writes some 500 MB below a folder of its own, and removes it. With --run it writes nothing: it says which records,
    layouts and objects a run lacks, and what restores it.
    """
    if len(roots_of(root)) > 1:
        raise InvalidArgument(f"--root {root}: examine one root at a time")
    access = Access(root, token, allow_http)
    if run is not None:
        _examine_run(access, run, json_output)
        return
    if clean:
        with opened_store(access) as store:
            _clean(store, json_output)
        return
    plan = Plan(rounds=rounds, racers=racers)
    with (
        _terminated_as_interrupted(),
        opened_store(access) as store,
        opened_store(access) as observer,
        Examination(store, observer=observer, plan=plan) as examination,
    ):
        findings = []
        for finding in examination.findings():
            findings.append(finding)
            if sys.stderr.isatty() and not json_output:
                say(f"{finding.level:<8} {finding.check}", error=True)
        report = examination.report(findings)
    if json_output:
        print_json(report.document())
    else:
        _show(report)
    if not report.safe:
        raise typer.Exit(UNSAFE)


def _clean(store: Store, json_output: bool) -> None:
    folders = remove_leftovers(store)
    if json_output:
        print_json({"removed": list(folders)})
    else:
        for line in [f"removed {folder}" for folder in folders] or ["nothing was left behind"]:
            say(line)


def _examine_run(access: Access, run: str, json_output: bool) -> None:
    run = run_name(run)
    with opened_store(access) as store:
        found = audit_run(store, run, contents=False)
        if found.records == 0 and next(store.list(f"{run}/"), None) is None:
            raise NotFound(f"there is no run {run!r} in {access.root}")
    if json_output:
        print_json({"url": access.root, **found.document()})
    else:
        print_defects(found)
        say(
            f"run {run}: {found.records:,} records and {found.versions:,} versions can be read, which need "
            f"{found.objects:,} objects; "
            + (verdict(found) if found.defects else "all are there (pulse verify --all reads them)")
        )
    if code := defects_code([found]):
        raise typer.Exit(code)


def _show(report: Report) -> None:
    print_table(
        ("check", "level", "found", "evidence"),
        [(finding.check, finding.level.value, finding.verdict, _evidence(finding)) for finding in report.findings],
        title=report.url,
    )
    advice: dict[str, list[str]] = {}
    for finding in report.findings:
        if finding.advice:
            advice.setdefault(finding.advice, []).append(finding.check)
    say(report.verdict)
    for text, checks in advice.items():
        say("")
        say(f"{', '.join(checks)}:")
        say(f"  {text}")


def _evidence(finding: Finding) -> str:
    return "; ".join(
        f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}"
        for name, value in finding.evidence.items()
    )


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does, so that it clears up; only the main thread can have that."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = None
    with suppress(ValueError):
        previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)
