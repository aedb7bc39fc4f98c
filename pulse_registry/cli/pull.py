"""``pulse pull``: pulls a version into a folder, as a Hugging Face checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pulse_registry.cache import cache_folder
from pulse_registry.checkpoint import pull_checkpoint
from pulse_registry.cli.options import (
    AllowHttp,
    CacheBytes,
    CacheFolderOption,
    Json,
    NonFiniteAs,
    NonFiniteOption,
    Root,
    Run,
    Token,
    Trusted,
    VersionOption,
    parse_version,
)
from pulse_registry.cli.output import print_json, size
from pulse_registry.cli.progress import MeteredFiles
from pulse_registry.cli.session import Access, open_session
from pulse_registry.cli.timeline import TimelineOption, print_timeline, timeline_rows
from pulse_registry.options import PullOptions
from pulse_registry.quoting import say


def pull(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The checkpoint's folder; made if need be.")],
    root: Root,
    run: Run,
    version: VersionOption = "latest",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the shards in DIR whole, whatever they hold.")
    ] = False,
    also: Annotated[
        list[str] | None,
        typer.Option("--also", metavar="NAME", help="Write this file of the run's, too, which is code. Repeatable."),
    ] = None,
    nonfinite: NonFiniteOption = NonFiniteAs.allow,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    cache: CacheFolderOption = None,
    cache_bytes: CacheBytes = None,
    timeline: TimelineOption = False,
    json_output: Json = False,
) -> None:
    """Make DIR the Hugging Face checkpoint of a version; from another version of the run it gets there by patches.

    The configuration, tokenizer and chat template that the run carries come along; code only where --also names it.

    Crash-safe: at every moment DIR's index names a whole version, the old or the new one.
    """
    wanted = parse_version(version)
    copies = cache_folder(cache, cache_bytes)
    with open_session(
        Access(root, token, allow_http, trust),
        run,
        title=f"pull to {out}",
        quiet=json_output,
        pull=PullOptions(spool=out, nonfinite=nonfinite.value),
        cache=copies,
    ) as session:
        files = MeteredFiles(session.meter)
        result = pull_checkpoint(session.registry, wanted, into=out, replace=replace, also=also or (), files=files)
    if json_output:
        print_json(
            {
                "version": result.version,
                "digest": result.digest,
                "bytes": result.nbytes,
                "objects": result.objects,
                "verified": result.verified,
                "avoided": result.avoided,
                "files": result.files,
                "left_out": result.left_out,
                "kept": result.kept,
                **({"timeline": timeline_rows(result.timeline)} if timeline else {}),
            }
        )
        return
    fetched = f"{size(result.nbytes)} in {result.objects} objects" if result.objects else "nothing to fetch"
    say(f"{out} holds version {result.version}, verified: {fetched}, digest {result.digest}")
    if result.files:
        say(f"files: {', '.join(result.files)}")
    if result.kept:
        say(f"not replaced, since no pull has put them there: {', '.join(result.kept)}")
    if result.left_out:
        say(f"left out, since they may be code (--also NAME): {', '.join(result.left_out)}")
    if timeline:
        print_timeline(result.timeline)
