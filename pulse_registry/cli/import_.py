"""``pulse import``: publishes checkpoint and delta folders of other systems as versions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pulse_registry.cli.export import Format, FormatOption
from pulse_registry.cli.options import AllowHttp, Json, Root, Run, SigningKeyFile, Token, Trusted
from pulse_registry.cli.output import print_json, size
from pulse_registry.cli.session import Access, open_session
from pulse_registry.interop import Imported, import_folder
from pulse_registry.push.options import PushOptions
from pulse_registry.quoting import say


def import_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A checkpoint, a delta, or a folder of such folders.")],
    root: Root,
    run: Run,
    format_: FormatOption = Format.hf_delta,
    token: Token = None,
    allow_http: AllowHttp = False,
    signing_key: SigningKeyFile = None,
    trust: Trusted = None,
    json_output: Json = False,
) -> None:
    """Publish what DIR holds as the run's next versions, bit for bit; what the run has already is left out.

    A delta must build on the run's newest version, or on one that DIR holds as well. Each changed tensor is held
    against its checksum before its version is published.
    """
    options = PushOptions(dtype="keep")
    imported: list[Imported] = []
    with open_session(
        Access(root, token, allow_http, trust, signing_key),
        run,
        title=f"import {folder}",
        quiet=json_output,
        push=options,
    ) as session:
        for one in import_folder(session.registry, folder):
            imported.append(one)
            if not json_output:
                share = f"{one.changed:,} of {one.cells:,} cells"
                say(f"version {one.version} is {one.folder} ({one.name}): {share} in {size(one.nbytes)}", flush=True)
    if json_output:
        print_json([_fields(one) for one in imported])
    elif not imported:
        say(f"run {run!r} has all of {folder} already")


def _fields(one: Imported) -> dict[str, object]:
    return {
        "folder": str(one.folder),
        "name": one.name,
        "version": one.version,
        "changed": one.changed,
        "cells": one.cells,
        "bytes": one.nbytes,
        "digest": one.digest,
    }
