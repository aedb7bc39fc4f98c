"""The options that commands share."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from pulse_registry.errors import InvalidArgument

Root = Annotated[
    str, typer.Option("--root", envvar="PULSE_ROOT", metavar="URL", help="The registry: a folder, or a URL.")
]
Run = Annotated[str, typer.Option("--run", envvar="PULSE_RUN", metavar="NAME", help="The run.")]
AnyRoot = Annotated[
    str | None, typer.Option("--root", envvar="PULSE_ROOT", metavar="URL", help="The registry: a folder, or a URL.")
]
AnyRun = Annotated[str | None, typer.Option("--run", envvar="PULSE_RUN", metavar="NAME", help="The run.")]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", metavar="TOKEN", help="For a service. Better in PULSE_TOKEN: others can see a command's options."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, of errors too.")]
VersionOption = Annotated[str, typer.Option("--version", metavar="V", help="A version's number, or latest.")]


def parse_version(text: str) -> int | Literal["latest"]:
    """Return what a version option says.

    Raises:
        InvalidArgument: neither a number nor ``latest``.
    """
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    raise InvalidArgument(f"{text!r} is no version: give a number from 0 on, or latest")
