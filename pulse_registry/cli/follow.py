"""``pulse follow``: watches a run, and brings an engine, a folder or a command to its versions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pulse_registry.cli.ending import interrupts
from pulse_registry.cli.options import AllowHttp, Json, Root, Run, Token, Trusted, parse_duration, parse_version
from pulse_registry.cli.output import print_json
from pulse_registry.cli.session import Access, opened_store
from pulse_registry.client.reports import Reporter, TakesReports
from pulse_registry.client.routes import checked_worker
from pulse_registry.errors import InvalidArgument
from pulse_registry.follow import (
    AdapterEngine,
    Changed,
    CommandEngine,
    Engine,
    Failed,
    FolderEngine,
    Follower,
    Pace,
    SglangEngine,
    VllmEngine,
)
from pulse_registry.follow.engine_api import EngineApi
from pulse_registry.options import Options
from pulse_registry.process import environment
from pulse_registry.quoting import say
from pulse_registry.registry import Registry
from pulse_registry.signing import trust_of


def follow(
    root: Root,
    run: Run,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="KIND=WHERE", help="vllm=URL, sglang=URL, or dir=DIR: a checkpoint folder."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="CMD",
            help="Called for each version ({version}, PULSE_VERSION), alone or once DIR holds it; fails if not 0.",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Where sglang, or --adapter, loads versions from.")
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option("--adapter", metavar="NAME", help="Of a run of adapters: load each version under this name."),
    ] = None,
    loaded: Annotated[
        str, typer.Option("--loaded", metavar="V", help="The version that a vllm engine was started with.")
    ] = "0",
    pin: Annotated[
        str | None, typer.Option("--pin", metavar="V", help="Stay at this version, or at the one that a tag names.")
    ] = None,
    at_most_every: Annotated[
        str | None, typer.Option("--at-most-every", metavar="TIME", help="Change at most so often, such as 30s.")
    ] = None,
    max_behind: Annotated[
        int | None,
        typer.Option("--max-behind", metavar="N", min=0, help="But at once where it is more than N versions behind."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Report to the service what NAME serves.")
    ] = None,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    json_output: Json = False,
) -> None:
    """Bring an engine to each new version of a run, until stopped: stage, pause, apply, reset caches, resume.

    Whatever fails, the engine goes on with the version that it serves, and it is tried again after a while. A line is
    printed for each change. A token for the engine is taken from PULSE_ENGINE_TOKEN.
    """
    every_s = 0.0 if at_most_every is None else parse_duration(at_most_every).total_seconds()
    pace = Pace("latest" if pin is None else parse_version(pin), every_s, max_behind)
    named = None if name is None else checked_worker(name)
    with (
        opened_store(Access(root, token, allow_http, trust)) as store,
        Registry(store, run, Options(trust=trust_of(trust or None))) as registry,
    ):
        gateway = store.gateway()
        if named is not None and not isinstance(gateway, TakesReports):
            raise InvalidArgument(f"--name: {root.partition('?')[0]} is no service, and a bucket takes no reports")
        reporter = Reporter(gateway, run, named) if named is not None and isinstance(gateway, TakesReports) else None
        engine_ = _engine(registry, root, (engine, command, folder, adapter), parse_version(loaded), allow_http)
        follower = Follower(registry, engine_, pace, lambda told: _print(told, json_output), reporter=reporter)
        try:
            with interrupts(follower.stop, lambda: follower.pausing):
                follower.run()
        finally:
            engine_.close()
            if reporter is not None:
                reporter.close()


def _engine(
    registry: Registry,
    root: str,
    given: tuple[str | None, str | None, Path | None, str | None],
    loaded: int | str,
    allow_http: bool,
) -> Engine:
    """Return what the options --engine, --exec, --folder and --adapter name.

    Raises:
        InvalidArgument: they name nothing, or don't go together.
    """
    engine, command, folder, adapter = given
    kind, _, where = ("exec", "", "") if engine is None else engine.partition("=")
    if adapter is not None and (not adapter or kind not in ("vllm", "sglang")):
        raise InvalidArgument("--adapter NAME goes with --engine vllm=URL or sglang=URL")
    if (folder is not None) != (kind == "sglang" or adapter is not None):
        raise InvalidArgument(
            "--folder is for --engine sglang=URL and for --adapter, which need it: the server loads versions from it"
        )
    if command is not None and kind not in ("exec", "dir"):
        raise InvalidArgument("--exec goes alone, or with --engine dir=DIR")
    if engine is None:
        if command is None:
            raise InvalidArgument("give --engine KIND=WHERE, or --exec CMD")
        return CommandEngine(command)
    if where and kind == "dir":
        out = os.path.abspath(where)
        return FolderEngine(registry, Path(out), None if command is None else CommandEngine(command, folder=out))
    if where and kind in ("vllm", "sglang"):
        api = EngineApi(where, token=environment.ENGINE_TOKEN.read(), allow_http=allow_http)
        if folder is not None and adapter is not None:
            return AdapterEngine(api, registry, folder, adapter, "vllm" if kind == "vllm" else "sglang")
        if folder is not None:
            return SglangEngine(api, registry, folder)
        seen = root if "://" in root else os.path.abspath(os.path.expanduser(root))
        return VllmEngine(api, seen, registry.run, loaded=loaded)
    raise InvalidArgument(f"--engine {kind!r}: it is vllm=URL, sglang=URL or dir=DIR")


def _print(told: Changed | Failed, json_output: bool) -> None:
    if json_output:
        print_json(told.document(), flush=True)
    else:
        say(told.line(), error=isinstance(told, Failed), flush=True)
