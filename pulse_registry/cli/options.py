"""The options that commands share."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from pulse_registry.errors import InvalidArgument
from pulse_registry.log.names import version_name
from pulse_registry.process import environment

ROOT_HELP: Final = "The registry: a folder, or a URL; several with commas."
Root = Annotated[
    str,
    typer.Option(
        "--root",
        envvar=environment.ROOT.name,
        metavar="URL",
        help="The registry: a folder, or a URL; several with commas.",
    ),
]
Run = Annotated[str, typer.Option("--run", envvar=environment.RUN.name, metavar="NAME", help="The run.")]
AnyRoot = Annotated[
    str | None,
    typer.Option(
        "--root",
        envvar=environment.ROOT.name,
        metavar="URL",
        help="The registry: a folder, or a URL; several with commas.",
    ),
]
AnyRun = Annotated[str | None, typer.Option("--run", envvar=environment.RUN.name, metavar="NAME", help="The run.")]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", metavar="TOKEN", help="For a service. Better in PULSE_TOKEN: others can see a command's options."
    ),
]
AllowHttp = Annotated[
    bool,
    typer.Option(
        "--allow-http",
        envvar=environment.ALLOW_HTTP.name,
        help="Let the token go over http:// to another machine, where others may read it.",
    ),
]
Trusted = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        envvar=environment.TRUST.name,
        metavar="KEY",
        help="Believe only what this public key has signed (ed25519:...; may be repeated; =attach,retire limits it).",
    ),
]
SigningKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--signing-key", envvar=environment.SIGNING_KEY.name, metavar="FILE", help="Sign what is written with this key."
    ),
]
CacheFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--cache",
        envvar=environment.CACHE.name,
        metavar="DIR",
        help="Share what is fetched with other processes of this host.",
    ),
]
CacheBytes = Annotated[
    int | None,
    typer.Option(
        "--cache-bytes",
        envvar=environment.CACHE_BYTES.name,
        metavar="N",
        help="Of the cache, at most; half of its disk if not given.",
    ),
]


class NonFiniteAs(StrEnum):
    """What becomes of NaN and infinities."""

    allow = "allow"
    warn = "warn"
    refuse = "refuse"


NonFiniteOption = Annotated[
    NonFiniteAs, typer.Option("--nonfinite", help="Of weights that are NaN or infinite, among those that change.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, of errors too.")]
VersionOption = Annotated[str, typer.Option("--version", metavar="V", help="A version's number, latest, or a tag.")]
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_version(text: str) -> int | str:
    """Return what a version option says.

    Raises:
        InvalidArgument: neither a number nor ``latest`` nor a tag's name.
    """
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    try:
        return version_name(text)
    except InvalidArgument:
        raise InvalidArgument(f"{text!r} is no version: give a number from 0 on, latest, or a tag") from None


def parse_duration(text: str) -> timedelta:
    """Return a time that is written as a number and a unit.

    Raises:
        InvalidArgument: it is no such thing.
    """
    match = re.fullmatch(r"(0|[1-9][0-9]{0,3})([smhdw])", text, re.ASCII)
    if match is None:
        raise InvalidArgument(f"{text!r} is no time: write a number up to 9999 and s, m, h, d or w, such as 30d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
