"""``pulse log``: the versions of a run."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from pulse_registry.cli.options import AllowHttp, Json, Root, Run, Token, Trusted
from pulse_registry.cli.output import print_json, print_table, size
from pulse_registry.cli.session import Access, open_session
from pulse_registry.quoting import say
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
            for version in session.registry.watch(after=-1):
                say(_line(version, json_output=json_output), flush=True)
            return
        versions = session.registry.versions()
    if json_output:
        print_json([_document(version) for version in versions])
        return
    print_table(
        ("version", "step", "kind", "changed", "bytes", "created at", "digest"),
        [(v.version, v.step, v.kind, v.changed, size(v.nbytes), v.created_at, v.digest) for v in versions],
    )


def _document(version: Version) -> dict[str, Any]:
    return {
        "version": version.version,
        "step": version.step,
        "kind": version.kind,
        "changed": version.changed,
        "bytes": version.nbytes,
        "created_at": version.created_at,
        "digest": version.digest,
        "files": version.files,
    }


def _line(version: Version, *, json_output: bool) -> str:
    if json_output:
        return json.dumps(_document(version))
    return (
        f"{version.created_at}  version {version.version} (step {version.step}): {version.kind} of "
        f"{size(version.nbytes)}, {version.changed:,} cells, digest {version.digest}"
    )
