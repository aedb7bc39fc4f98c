"""``pulse log``: the versions of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from pulse_registry.cli.ending import interrupts
from pulse_registry.cli.options import AllowHttp, Json, Root, Run, Token, Trusted
from pulse_registry.cli.output import line_of, print_json, print_table, size
from pulse_registry.cli.patience import patiently
from pulse_registry.cli.session import Access, open_session
from pulse_registry.quoting import say
from pulse_registry.registry import Registry
from pulse_registry.results import Version


def log(
    root: Root,
    run: Run,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with each new version, a line each, until interrupted.")
    ] = False,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    json_output: Json = False,
) -> None:
    """List the run's versions, oldest first."""
    with open_session(Access(root, token, allow_http, trust), run, title="log", quiet=json_output or follow) as session:
        if follow:
            with interrupts(lambda: None, lambda: False):
                for version in followed(session.registry):
                    _print(version, json_output=json_output)
            return
        versions, home = session.registry.versions(), session.registry.state().home
    if json_output:
        print_json([_document(version) for version in versions])
        return
    print_table(
        ("version", "step", "kind", "changed", "share", "bytes", "created at", "digest"),
        [(v.version, v.step, v.kind, v.changed, _share(v), size(v.nbytes), v.created_at, v.digest) for v in versions],
    )
    if home is not None:
        say(f"record {home.seq} moved the run to {home.to}")


def followed(registry: Registry, sleep: Callable[[float], object] = time.sleep) -> Iterator[Version]:
    """Yield all versions, and each new one; while the store is away, it waits."""
    seen = -1

    def news() -> Iterator[Version]:
        nonlocal seen
        for version in registry.watch(after=seen):
            seen = version.version
            yield version

    return patiently(news, sleep)


def _document(version: Version) -> dict[str, Any]:
    return {
        "version": version.version,
        "step": version.step,
        "kind": version.kind,
        "changed": version.changed,
        "cells": version.cells,
        "bytes": version.nbytes,
        "created_at": version.created_at,
        "digest": version.digest,
        "files": version.files,
    }


def _print(version: Version, *, json_output: bool) -> None:
    if json_output:
        print_json(_document(version), flush=True)
        return
    fields = (
        f"version {version.version}",
        f"step {version.step}",
        f"{version.kind} of {size(version.nbytes)}",
        f"{_share(version)} of the cells",
        version.created_at,
        f"{version.changed:,} cells",
        f"digest {version.digest}",
    )
    say(line_of(fields), flush=True)


def _share(version: Version) -> str:
    return f"{100 * version.changed / max(version.cells, 1):.3g} %"
