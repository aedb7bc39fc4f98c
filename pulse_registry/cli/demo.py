"""``pulse demo``: a real training run, published and pulled while it goes on."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from pulse_registry.cli.options import Json
from pulse_registry.errors import InvalidArgument


def demo(
    steps: Annotated[int | None, typer.Option(min=1, help="How many training steps.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="PATH_OR_PACKAGE", help="The model: a folder, a file or a package.")
    ] = None,
    ranks: Annotated[
        int,
        typer.Option(min=1, max=8, help="Ranks of the trainer; from 2 on its model is sharded, and a worker's too."),
    ] = 1,
    root: Annotated[
        str | None,
        typer.Option(
            "--root",
            metavar="URL",
            help="Where the registry is kept, else in the demo's folder; of a service, with PULSE_TOKEN set.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where the report goes.")] = None,
    json_output: Json = False,
) -> None:
    """Train a small chat model while workers pull each version, and check every bit of it."""
    try:
        run_demo = importlib.import_module("pulse_registry.demo").run_demo
        code = run_demo(steps=steps, model=model, ranks=ranks, root=root, out=out, json_output=json_output)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing.startswith("pulse_") and error.name != "pulse_registry.demo":
            raise
        raise InvalidArgument(
            f"the demo needs packages that are not here ({error.name}): pip install 'pulse-registry[demo]'"
        ) from error
    raise typer.Exit(code)
