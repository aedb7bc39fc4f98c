"""``pulse warm-up``: compiles the kernels ahead, for the processes that come after."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Annotated

import typer

from pulse_registry.cli.options import Json
from pulse_registry.cli.output import print_json
from pulse_registry.errors import InvalidArgument
from pulse_registry.quoting import say
from pulse_registry.weights.backend import backend_of


def warm_up(
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep them here, for processes with NUMBA_CACHE_DIR=DIR; where numba keeps them if not given.",
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Compile the kernels for 16-bit weights, once for all processes of this package on processors like this one.

    For images, and hosts where many processes start at a time. What is compiled already is only looked at.
    """
    backend = backend_of("numba")
    compile_ = importlib.import_module("pulse_kernels.cpu.compile")  # which imports numba: no other command needs it
    if to is not None:
        compile_.keep_in(to.absolute())
    began = time.perf_counter()
    folder = compile_.cache_folder()
    if folder is None or (to is not None and not folder.is_relative_to(to.absolute())):
        why = compile_.exposed()
        if why is not None:
            raise InvalidArgument(
                f"{why}, so that nothing is kept there: whoever changes compiled kernels runs code as their user. Take "
                "that right away, or name another folder with --to DIR"
            )
        where = to or "where numba keeps what it compiles"
        raise InvalidArgument(f"{where}: nothing can be written there; name a folder that can be, with --to DIR")
    backend.warm_up(2)
    for name, width in compile_.exponent_loops():
        compile_.compiled(name, width)
    seconds = time.perf_counter() - began
    if json_output:
        print_json({"folder": str(to.absolute() if to else folder), "seconds": round(seconds, 3)})
        return
    say(f"the kernels are in {to or folder}, after {seconds:.1f} s")
    if to is not None:
        say(f"processes use them with NUMBA_CACHE_DIR={to.absolute()}, if they may write there")
