"""``pulse token``: the tokens of a service, in the file that it reads."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from pulse_registry.cli.options import Json, parse_duration
from pulse_registry.cli.output import print_json, print_table
from pulse_registry.cli.serve import server_module
from pulse_registry.process import environment
from pulse_registry.quoting import say

token = typer.Typer(help="Make, list and revoke the tokens of a service.", no_args_is_help=True)

TokensFile = Annotated[
    Path, typer.Option("--file", envvar=environment.TOKENS_FILE.name, metavar="FILE", help="The tokens' file.")
]


class ScopeName(StrEnum):
    """What a token allows; all others include ``read``, and ``admin`` includes them all."""

    read = "read"
    publish = "publish"
    mirror = "mirror"
    admin = "admin"


@token.command("new")
def new(
    name: Annotated[str, typer.Option(help="Whose it is; the service's log says it.")],
    scope: Annotated[ScopeName, typer.Option(help="read; publish or mirror, which include it; admin: all.")],
    run: Annotated[
        list[str] | None, typer.Option("--run", metavar="PATTERN", help="Runs it is for; * and ? stand for any. [all]")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it is good: 90m, 12h, 30d, 8w. [for ever]")
    ] = None,
    file: TokensFile = Path("tokens.json"),
    json_output: Json = False,
) -> None:
    """Make a token and print it, this once; the file keeps its SHA-256. A running service knows it within a second."""
    tokens, now = server_module("tokens"), datetime.now(UTC)
    expires_at = None if expires is None else now + parse_duration(expires)
    text, entry = tokens.new_token(name, scope.value, tuple(run or ["*"]), now=now, expires_at=expires_at)
    tokens.TokenFile(file).add(entry)
    if json_output:
        print_json({"token": text} | _shown(entry))
    else:
        say(text)


@token.command("list")
def list_tokens(file: TokensFile = Path("tokens.json"), json_output: Json = False) -> None:
    """List the tokens in the file: whose they are and what they allow."""
    found = [_shown(entry) for entry in server_module("tokens").TokenFile(file).read().tokens]
    if json_output:
        print_json(found)
        return
    columns = ("id", "name", "scope", "runs", "created_at", "expires_at")
    print_table(
        [column.replace("_", " ") for column in columns],
        [[" ".join(one[c]) if c == "runs" else one[c] for c in columns] for one in found],
    )


@token.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id: what follows pulse_ in it.")],
    file: TokensFile = Path("tokens.json"),
    json_output: Json = False,
) -> None:
    """Take a token out of the file; a running service refuses it within a second."""
    gone = server_module("tokens").TokenFile(file).remove(token_id)
    if json_output:
        print_json(_shown(gone))
    else:
        say(f"revoked {gone.id}, the token of {gone.name}")


def _shown(entry: Any) -> dict[str, Any]:
    """Return what may be shown of a token."""
    shown: dict[str, Any] = entry.model_dump(mode="json", exclude={"sha256"})
    return shown
