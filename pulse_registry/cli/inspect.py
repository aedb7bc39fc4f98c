"""``pulse inspect``: describes one stored object, or file."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from pulse_registry.cli.described import Source, describe_object
from pulse_registry.cli.options import AllowHttp, AnyRoot, AnyRun, Json, Token
from pulse_registry.cli.output import print_fields, print_json, print_table
from pulse_registry.cli.session import Access, opened_store
from pulse_registry.errors import InvalidArgument
from pulse_registry.log.names import run_name
from pulse_registry.process.open_files import open_regular
from pulse_registry.store import RunStore


def inspect(
    name: Annotated[str, typer.Argument(metavar="OBJECT", help="A file, or a key of the run.")],
    root: AnyRoot = None,
    run: AnyRun = None,
    token: Token = None,
    allow_http: AllowHttp = False,
    json_output: Json = False,
) -> None:
    """Say what an object is, and its fields: a patch, a keyframe's file, a record, a snapshot, a layout."""
    with ExitStack() as stack:
        document = describe_object(_source(stack, name, root, run, token, allow_http))
    if json_output:
        print_json(document)
        return
    tables = {key: value for key, value in document.items() if isinstance(value, list) and value}
    print_fields({key: _short(value) for key, value in document.items() if key not in tables})
    for key, rows in tables.items():
        if isinstance(rows[0], dict):
            print_table(tuple(rows[0]), [[_short(value) for value in row.values()] for row in rows], title=key)
        else:
            print_table((key,), [[_short(row)] for row in rows])


def _source(
    stack: ExitStack, name: str, root: str | None, run: str | None, token: str | None, allow_http: bool
) -> Source:
    path = Path(name)
    if path.is_file():
        try:
            return Source.of_file(path, stack.enter_context(open_regular(path)))
        except OSError as error:
            raise InvalidArgument(f"{path} can't be read: {error.strerror or error}") from error
    if root is None or run is None:
        raise InvalidArgument(f"there is no file {name}; give --root and --run to inspect a key of a run")
    store = stack.enter_context(opened_store(Access(root, token, allow_http)))
    return Source.of_key(RunStore(store, run_name(run)), name)


def _short(value: Any) -> Any:
    return value if isinstance(value, int | float | str) or value is None else " ".join(str(value).split())
