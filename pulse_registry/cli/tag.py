"""``pulse tag``: shows, gives and takes away names of versions, which keep them."""

from __future__ import annotations

from typing import Annotated

import typer

from pulse_registry.cli.options import AllowHttp, Json, Root, Run, SigningKeyFile, Token, Trusted, parse_version
from pulse_registry.cli.output import print_json, print_table
from pulse_registry.cli.session import Access, open_session
from pulse_registry.errors import InvalidArgument, NotFound
from pulse_registry.log.names import tag_name
from pulse_registry.quoting import say
from pulse_registry.registry import Registry


def tag(
    root: Root,
    run: Run,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="The name; alone, it is looked up. Without it, all are listed."),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(metavar="V", help="What it is to stand for from now on: a number, latest, or another tag."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the name away.")] = False,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    signing_key: SigningKeyFile = None,
    json_output: Json = False,
) -> None:
    """Show which version a name stands for; with --version, give it to one.

    A version can be pulled by its names, and is kept for as long as it has one.
    """
    if name is None and (remove or version is not None):
        raise InvalidArgument("give the tag's name: pulse tag NAME")
    if remove and version is not None:
        raise InvalidArgument("give --version or --remove, not both")
    if name is not None:
        name = tag_name(name)
    wanted = None if version is None else parse_version(version)
    with open_session(Access(root, token, allow_http, trust, signing_key), run, title="tag", quiet=True) as session:
        if name is None:
            _list(session.registry, json_output=json_output)
        elif wanted is None and not remove:
            _show(session.registry, name, json_output=json_output)
        else:
            _move(session.registry, name, wanted, json_output=json_output)


def _list(registry: Registry, *, json_output: bool) -> None:
    tags = registry.tags()
    if json_output:
        print_json(tags)
    else:
        print_table(("tag", "version"), list(tags.items()))


def _show(registry: Registry, name: str, *, json_output: bool) -> None:
    found = _found(registry, name)
    if json_output:
        print_json({"tag": name, "version": found})
    else:
        say(f"{name} stands for version {found}")


def _move(registry: Registry, name: str, version: int | str | None, *, json_output: bool) -> None:
    """Give the name to a version, or, for None, take it away; say what it stood for."""
    if version is None:
        _found(registry, name)
    before = registry.tag(name, version)
    now = registry.tags().get(name)
    if json_output:
        print_json({"tag": name, "version": now, "before": before})
        return
    was = "" if before is None else f"; it stood for version {before}"
    if before is not None and before == now:
        was = ", as before"
    say(f"{name} stands for {'nothing' if now is None else f'version {now}'} now{was}")


def _found(registry: Registry, name: str) -> int:
    found = registry.tags().get(name)
    if found is None:
        raise NotFound(
            f"run {registry.run!r} has no tag {name!r}: `pulse tag` lists those that it has, and `pulse tag {name} "
            "--version V` gives the name to a version"
        )
    return found
