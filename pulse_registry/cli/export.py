"""``pulse export``: writes versions in the common delta format."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pulse_registry.cli.options import AllowHttp, Json, Root, Run, Token, Trusted, parse_version
from pulse_registry.cli.output import print_json, size
from pulse_registry.cli.session import Access, open_session
from pulse_registry.interop import Exported, Form, export_chain, export_delta, export_full
from pulse_registry.interop.checksum import Checksum
from pulse_registry.interop.frames import Encoding
from pulse_registry.quoting import say


class Format(StrEnum):
    """Formats that others read and write."""

    hf_delta = "hf-delta"


FormatOption = Annotated[Format, typer.Option("--format", help="Whose: hf-delta is the field's common delta format.")]


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What is written; it must not be there, or be empty.")],
    root: Root,
    run: Run,
    format_: FormatOption = Format.hf_delta,
    base: Annotated[
        str | None, typer.Option("--from", metavar="V", help="The version that readers hold; none: write all of it.")
    ] = None,
    version: Annotated[str, typer.Option("--to", metavar="V", help="The version that they get.")] = "latest",
    chain: Annotated[
        bool, typer.Option("--chain", help="Each version after it in a folder of its own: DIR/weight_v000001, ...")
    ] = False,
    encoding: Annotated[Encoding, typer.Option(help="Of what changed; ModelExpress reads xor alone.")] = Encoding.XOR,
    checksum: Annotated[
        Checksum, typer.Option(help="Of each tensor; ModelExpress reads adler32 alone.")
    ] = Checksum.ADLER32,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    json_output: Json = False,
) -> None:
    """Write a version, or what leads to it from another one, for those who read the common delta format.

    DIR shows up whole, or not at all. With --chain, folders that are there already are left as they are.
    """
    start, end = None if base is None else parse_version(base), parse_version(version)
    form = Form(encoding, checksum)
    with open_session(
        Access(root, token, allow_http, trust), run, title=f"export to {folder}", quiet=json_output
    ) as session:
        registry = session.registry
        if chain:
            written = list(export_chain(registry, folder, start, end, form=form))
        elif start is None:
            written = [export_full(registry, folder, end, form=form)]
        else:
            written = [export_delta(registry, folder, start, end, form=form)]
    if json_output:
        print_json([_fields(one) for one in written])
        return
    for one in written:
        what = "all of it" if one.base is None else f"from version {one.base}"
        say(f"{one.folder} holds version {one.version}, {what}: {one.tensors} tensors in {size(one.nbytes)}")
    if not written:
        say(f"{folder} holds all of them already")


def _fields(one: Exported) -> dict[str, object]:
    return {
        "folder": str(one.folder),
        "version": one.version,
        "base": one.base,
        "tensors": one.tensors,
        "bytes": one.nbytes,
    }
