"""``pulse tag``: names that stand for versions, and keep them."""

from __future__ import annotations

from typing import Annotated

import typer

from pulse_registry.cli.options import AllowHttp, Json, Root, Run, SigningKeyFile, Token, Trusted, parse_version
from pulse_registry.cli.output import print_json, print_table
from pulse_registry.cli.session import open_session
from pulse_registry.errors import InvalidArgument


def tag(
    root: Root,
    run: Run,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The name. Without it, all are listed.")] = None,
    version: Annotated[
        str | None,
        typer.Option(metavar="V", help="What it is to stand for: a number, latest, or another tag. [latest]"),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the name away.")] = False,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    signing_key: SigningKeyFile = None,
    json_output: Json = False,
) -> None:
    """Give a version a name, by which it can be pulled, and for as long as which it is kept."""
    if name is None and (remove or version is not None):
        raise InvalidArgument("give the tag's name: pulse tag NAME")
    if remove and version is not None:
        raise InvalidArgument("give --version or --remove, not both")
    with open_session(
        root, run, title="tag", quiet=True, token=token, allow_http=allow_http, trust=trust, signing_key=signing_key
    ) as session:
        if name is not None:
            session.registry.tag(name, None if remove else parse_version(version or "latest"))
        tags = session.registry.tags()
    if json_output:
        print_json(tags)
    elif name is None:
        print_table(("tag", "version"), list(tags.items()))
    elif remove:
        print(f"{name} stands for nothing now")
    else:
        print(f"{name} stands for version {tags[name]}")
