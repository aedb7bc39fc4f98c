"""``pulse route``: what a pull would fetch."""

from __future__ import annotations

from typing import Annotated

import typer

from pulse_registry.cli.options import Json, Root, Run, Token, parse_version
from pulse_registry.cli.output import print_json, print_table, size
from pulse_registry.cli.session import open_session


def route(
    root: Root,
    run: Run,
    from_version: Annotated[
        str | None, typer.Option("--from", metavar="V", help="The version at hand; without it, nothing is.")
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar="V", help="A version's number, or latest.")] = "latest",
    token: Token = None,
    json_output: Json = False,
) -> None:
    """Show the cheapest way from a version, or from nothing, to another. Nothing is fetched."""
    target, have = parse_version(to), None if from_version is None else parse_version(from_version)
    with open_session(root, run, title="route", quiet=json_output, token=token) as session:
        if have == "latest":
            have = session.registry.version("latest").version
        found = session.registry.route(have, target)
    legs = [{"kind": leg.kind, "base": leg.base, "target": leg.target, "bytes": leg.nbytes} for leg in found.legs]
    if json_output:
        print_json({"version": found.target, "bytes": found.nbytes, "objects": legs})
        return
    origin = "nothing" if found.base is None else f"version {found.base}"
    print(f"from {origin} to version {found.target}: {size(found.nbytes)} in {found.objects} objects")
    if legs:
        print_table(("kind", "base", "target", "bytes"), [tuple(leg.values()) for leg in legs])
