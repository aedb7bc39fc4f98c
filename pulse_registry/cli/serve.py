"""``pulse serve``: the service over a registry."""

from __future__ import annotations

import importlib
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from pulse_registry.cli.options import ROOT_HELP, Json
from pulse_registry.errors import InvalidArgument


class LogFormat(StrEnum):
    """How log lines look."""

    text = "text"
    json = "json"


def serve(
    root: Annotated[
        str | None,
        typer.Option("--root", metavar="URL", help=f"{ROOT_HELP} [env: PULSE_ROOT]"),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any free one.")] = 8080,
    tokens: Annotated[
        Path | None, typer.Option("--tokens", metavar="FILE", help="The tokens' file. [env: PULSE_TOKENS_FILE]")
    ] = None,
    insecure_open: Annotated[
        bool, typer.Option("--insecure-open", help="No tokens: whoever is on this machine may do everything.")
    ] = False,
    log_format: Annotated[LogFormat | None, typer.Option("--log-format", help="Of the lines on stderr.")] = None,
    json_output: Json = False,
) -> None:
    """Serve a registry over HTTP, to workers and trainers that have tokens and no bucket keys.

    All settings can be given as PULSE_* variables; see docs/how-to/deploy-the-service.md.
    """
    code = server_module("command").serve(
        root=root,
        host=host,
        port=port,
        tokens_file=tokens,
        insecure_open=insecure_open or None,
        log_format=None if log_format is None else log_format.value,
        json_output=json_output,
    )
    raise typer.Exit(code)


def server_module(name: str) -> ModuleType:
    """Return a module of the server, which the library itself never imports.

    Raises:
        InvalidArgument: what it needs is not installed.
    """
    try:
        return importlib.import_module(f"pulse_server.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("pulse_"):
            raise
        raise InvalidArgument(
            f"the service needs packages that are not here ({error.name}): pip install 'pulse-registry[server]'"
        ) from error
