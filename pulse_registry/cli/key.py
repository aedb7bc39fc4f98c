"""``pulse key``: the keys that trainers, compactors and collectors sign with, and readers pin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pulse_registry.cli.options import Json
from pulse_registry.cli.output import print_json
from pulse_registry.quoting import say
from pulse_registry.signing import SigningKey

key = typer.Typer(help="Make and show signing keys.", no_args_is_help=True)


@key.command("new")
def new(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The new file; you alone may read it.")] = Path(
        "pulse-key.pem"
    ),
    json_output: Json = False,
) -> None:
    """Make a signing key in FILE (PEM), and print its public key, which readers pin. A file is never overwritten."""
    made = SigningKey.generate()
    made.save(out)
    _print(made, out, json_output=json_output)


@key.command("show")
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The signing key, as `pulse key new` made it.")],
    json_output: Json = False,
) -> None:
    """Print the public key of a signing key: what readers give as --trust."""
    _print(SigningKey.load(file), file, json_output=json_output)


def _print(found: SigningKey, file: Path, *, json_output: bool) -> None:
    if json_output:
        print_json({"public": found.public, "file": str(file)})
    else:
        say(found.public)
