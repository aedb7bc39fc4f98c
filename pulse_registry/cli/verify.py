"""``pulse verify``: checks a version's stored objects against its digest, or all that is stored below a root."""

from __future__ import annotations

from typing import Annotated

import typer

from pulse_registry.cli.audited import AuditedRun, audit_run, defects_code, print_defects, verdict
from pulse_registry.cli.options import AllowHttp, AnyRoot, AnyRun, Json, Token, Trusted, VersionOption, parse_version
from pulse_registry.cli.output import print_json, print_table, size
from pulse_registry.cli.progress import Meter, MeteredStore
from pulse_registry.cli.session import Access, open_session, opened_store
from pulse_registry.doctor.audit import audited_runs
from pulse_registry.errors import InvalidArgument, NotFound
from pulse_registry.quoting import say
from pulse_registry.signing import PinGuard, trust_of
from pulse_registry.store import RetryStore


def verify(
    root: AnyRoot = None,
    run: AnyRun = None,
    version: VersionOption = "latest",
    all_below: Annotated[
        str | None,
        typer.Option(
            "--all", metavar="URL", help="Check all that is stored below this root, such as a backup: every run, whole."
        ),
    ] = None,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    json_output: Json = False,
) -> None:
    """Fetch what leads to a version and check every byte and every cell of it.

    With --all, check instead that each run below a root has all records of its log, and every layout and object that
    its live versions need, with the right size and hash. Nothing is decoded, and nothing is written.
    """
    if all_below is not None:
        _verify_all(Access(all_below, token, allow_http, trust), json_output)
        return
    if root is None or run is None:
        raise InvalidArgument("give --root and --run, or --all URL to check all that is stored there")
    wanted = parse_version(version)
    with open_session(Access(root, token, allow_http, trust), run, title="verify", quiet=json_output) as session:
        found = session.registry.verify(wanted)
    if json_output:
        print_json({"version": found.version, "digest": found.digest, "cells": found.cells, "verified": True})
        return
    say(f"version {found.version} is whole: {found.cells:,} cells, digest {found.digest}")


def _verify_all(access: Access, json_output: bool) -> None:
    root, trust = access.root, trust_of(access.trust or None)
    runs = []
    with (
        Meter("verify", quiet=json_output) as meter,
        opened_store(access) as store,
    ):
        if store.gateway() is not None:
            raise InvalidArgument(f"{root} is a service, which lists no objects: go to the bucket")
        for run in audited_runs(RetryStore(store)):

            def guard(run: str = run) -> PinGuard | None:
                return None if trust is None else PinGuard(trust, root, run)  # a copy may be old: nothing is remembered

            runs.append(audit_run(MeteredStore(store, meter), run, contents=True, guard=guard))
    if not runs:
        raise NotFound(f"there is no run in {root}")
    if json_output:
        whole = not any(found.defects for found in runs)
        print_json({"root": root, "whole": whole, "runs": [found.document() for found in runs]})
    else:
        _show(root, runs)
    if code := defects_code(runs):
        raise typer.Exit(code)


def _show(root: str, runs: list[AuditedRun]) -> None:
    rows = [(one.run, one.records, one.versions, one.objects, size(one.nbytes), verdict(one)) for one in runs]
    print_table(("run", "records", "versions", "objects", "size", "found"), rows, title=root)
    for found in runs:
        print_defects(found)
