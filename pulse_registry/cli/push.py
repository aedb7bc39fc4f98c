"""``pulse push``: publishes a checkpoint as the run's next version."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pulse_registry.cli.options import (
    AllowHttp,
    Json,
    NonFiniteAs,
    NonFiniteOption,
    Root,
    Run,
    SigningKeyFile,
    Token,
    Trusted,
)
from pulse_registry.cli.output import print_json, size
from pulse_registry.cli.session import Access, open_session
from pulse_registry.cli.timeline import TimelineOption, print_timeline, timeline_rows
from pulse_registry.errors import InvalidArgument
from pulse_registry.push.checkpoint_source import read_checkpoint
from pulse_registry.push.files import Files
from pulse_registry.push.options import PushOptions
from pulse_registry.quoting import say


class Coder(StrEnum):
    """How patches are coded."""

    auto = "auto"
    gap = "gap"
    class_ = "class"


class KeyframesAs(StrEnum):
    """How keyframes are stored."""

    raw = "raw"
    exponents = "exponents"


class PublishAs(StrEnum):
    """The dtype of floating tensors."""

    bf16 = "bf16"
    keep = "keep"


def push(
    source: Annotated[Path, typer.Argument(metavar="FILE_OR_DIR", help="A safetensors file or a checkpoint's folder.")],
    step: Annotated[int, typer.Option(help="The trainer's own label of the version.")],
    root: Root,
    run: Run,
    coder: Annotated[Coder, typer.Option(help="Of the patch: class is smaller and slower.")] = Coder.auto,
    dtype: Annotated[PublishAs, typer.Option(help="float32 rounded to BF16, or all as it is.")] = PublishAs.bf16,
    keyframe_coding: Annotated[
        KeyframesAs, typer.Option(help="Of a keyframe: exponents is some 30 % smaller, for pulse alone to read.")
    ] = KeyframesAs.raw,
    files: Annotated[
        Path | None,
        typer.Option(
            "--files", metavar="DIR", help="Carry DIR's configuration, tokenizer and chat template along, too."
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--also", metavar="NAME", help="With --files: a further file of DIR, as modeling_x.py. Repeatable."
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--base", metavar="RUN[@V]", help="Begin a new run with a version of another one, stored once for both."
        ),
    ] = None,
    nonfinite: NonFiniteOption = NonFiniteAs.allow,
    token: Token = None,
    allow_http: AllowHttp = False,
    signing_key: SigningKeyFile = None,
    trust: Trusted = None,
    timeline: TimelineOption = False,
    json_output: Json = False,
) -> None:
    """Publish a checkpoint as the next version: the cells that changed, or all of the first one."""
    model = read_checkpoint(source)
    if also and files is None:
        raise InvalidArgument("--also names files of the folder that --files gives: give that, too")
    options = PushOptions(
        coder.value, dtype.value, keyframe_coding=keyframe_coding.value, nonfinite=nonfinite.value, base=base
    )
    with open_session(
        Access(root, token, allow_http, trust, signing_key),
        run,
        title=f"push {source}",
        quiet=json_output,
        push=options,
    ) as session:
        result = session.registry.push(step, model, files=None if files is None else Files(files, also or ()))
    if json_output:
        print_json(
            {
                "version": result.version,
                "step": result.step,
                "kind": result.kind,
                "changed": result.changed,
                "cells": result.cells,
                "bytes": result.nbytes,
                "digest": result.digest,
                **({"timeline": timeline_rows(result.timeline)} if timeline else {}),
            }
        )
        return
    share = f"{result.changed / result.cells:.2%}" if result.cells else "none"
    say(
        f"version {result.version} (step {result.step}): {result.kind} of {size(result.nbytes)}, "
        f"{result.changed:,} of {result.cells:,} cells ({share}), digest {result.digest}"
    )
    if timeline:
        print_timeline(result.timeline)
