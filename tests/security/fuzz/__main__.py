"""Fuzz the decoders by coverage: ``python -m tests.security.fuzz --seconds 3600 [--out FIGURES.json] [TARGET ...]``.

The seconds are shared by the targets. Inputs that are findings are left in ``--found``; try one again with
``python -m tests.security.fuzz --input FILE TARGET``.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from tests.security.fuzz.campaign import Outcome, fuzz
from tests.security.fuzz.targets import TARGETS


def main(
    targets: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(TARGETS)}; all by default.")] = None,
    seconds: Annotated[float, typer.Option(help="Of all targets together.")] = 3600.0,
    out: Annotated[Path | None, typer.Option(help="Write the figures here.")] = None,
    found: Annotated[Path, typer.Option(help="Folder for inputs that are findings.")] = Path("build/fuzz"),
    corpus: Annotated[Path | None, typer.Option(help="Folder of inputs worth keeping, read and added to.")] = None,
    jobs: Annotated[int, typer.Option(help="Targets at a time, each a process; all together take the seconds.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the fuzzer's choices.")] = 1,
    input_: Annotated[Path | None, typer.Option("--input", help="Try this one input, and nothing else.")] = None,
) -> None:
    """Fuzz the decoders."""
    names = targets or list(TARGETS)
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        raise typer.BadParameter(f"there is no target {unknown[0]}")
    if input_ is not None:
        accepted = TARGETS[names[0]]().check(input_.read_bytes())
        typer.echo("accepted" if accepted else "refused")
        return
    if importlib.util.find_spec("atheris") is None:
        typer.echo("atheris, which guides the fuzzer, has no wheel for this machine: nothing was fuzzed.", err=True)
        return
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(jobs) as processes:
        for outcome in processes.map(lambda name: fuzz(name, seconds / len(names), found, corpus, seed), names):
            outcomes.append(outcome)
            _tell(outcome)
            if out is not None:
                figures = {"seed": seed, "targets": [one.document() for one in outcomes]}
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_text(json.dumps(figures, indent=2) + "\n")
    if any(outcome.findings for outcome in outcomes):
        sys.exit(1)


def _tell(outcome: Outcome) -> None:
    typer.echo(
        f"{outcome.target}: {outcome.executions} executions in {outcome.seconds:.0f} s, {outcome.accepted} accepted, "
        f"coverage {outcome.coverage}, {len(outcome.findings)} findings"
    )
    for what, file in outcome.findings.items():
        typer.echo(f"  {what}  [{file}]")


if __name__ == "__main__":
    typer.run(main)
