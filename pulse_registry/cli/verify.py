"""``pulse verify``: a version's stored objects against its digest."""

from __future__ import annotations

from pulse_registry.cli.options import AllowHttp, Json, Root, Run, Token, Trusted, VersionOption, parse_version
from pulse_registry.cli.output import print_json
from pulse_registry.cli.session import open_session


def verify(
    root: Root,
    run: Run,
    version: VersionOption = "latest",
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    json_output: Json = False,
) -> None:
    """Fetch what leads to a version and check every byte and every cell of it."""
    wanted = parse_version(version)
    with open_session(
        root, run, title="verify", quiet=json_output, token=token, allow_http=allow_http, trust=trust
    ) as session:
        found = session.registry.verify(wanted)
    if json_output:
        print_json({"version": found.version, "digest": found.digest, "cells": found.cells, "verified": True})
        return
    print(f"version {found.version} is whole: {found.cells:,} cells, digest {found.digest}")
