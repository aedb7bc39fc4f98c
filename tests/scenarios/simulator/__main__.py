"""``python -m tests.scenarios.simulator``: ``--seed N`` runs one again, ``--total N`` many; ``mutants`` proves it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.results import write_result
from tests.scenarios.simulator.campaign import EACH, campaign, mutants, runner
from tests.scenarios.simulator.report import MUTANTS, update_page

app = typer.Typer(add_completion=False, help="The deterministic simulator.")


@app.callback(invoke_without_command=True)
def simulate(
    context: typer.Context,
    seed: Annotated[int | None, typer.Option(help="Run this one, and show its last operations.")] = None,
    operations: Annotated[int, typer.Option(help="Store operations of a seed.", min=1)] = EACH,
    total: Annotated[int, typer.Option(help="Store operations in all.", min=1)] = 100_000,
    first: Annotated[int, typer.Option(help="The first seed.")] = 0,
    processes: Annotated[int, typer.Option(help="Side by side.", min=1)] = os.cpu_count() or 1,
    ranks: Annotated[int, typer.Option(help="Trainers are jobs of up to so many ranks; 0: of one.", min=0)] = 0,
    members: Annotated[int, typer.Option(help="So many trainers work in outer rounds; 0: none.", min=0)] = 0,
    regions: Annotated[bool, typer.Option("--regions", help="Two regions, between which the run moves.")] = False,
    seconds: Annotated[float, typer.Option(help="Begin no seed after this time.")] = 1e9,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Run one seed or many; ends with 1 if something that must always be true was not."""
    if context.invoked_subcommand is not None:
        return
    if seed is not None:
        outcome = runner(ranks, members, regions=regions)(seed, operations)
        typer.echo("\n".join(outcome.tail))
        typer.echo(f"{outcome.operations} store operations, {outcome.counts}, trace {outcome.trace}")
        typer.echo(outcome.violation or "everything held")
        raise typer.Exit(outcome.violation is not None)
    document = {}
    options = {"first": first, "processes": processes, "each": operations, "seconds": seconds}
    options |= {"ranks": ranks, "members": members, "regions": regions}
    for document in campaign(total, say=typer.echo, **options):
        if out is not None:
            write_result(out, document)
    typer.echo(f"{document['operations']} store operations, {document['counts']}")
    raise typer.Exit(bool(document["violations"]))


@app.command("mutants")
def measure_mutants(
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.", min=1)] = 20,
    operations: Annotated[int, typer.Option(help="Store operations of a seed.", min=1)] = EACH,
    out: Annotated[Path, typer.Option(help="Result file.")] = MUTANTS,
) -> None:
    """Take each safeguard away, and count the store operations until that is seen."""
    rows = mutants(range(seeds), operations, typer.echo)
    write_result(out, {"kind": "simulator mutants", "operations_each": operations, "mutants": rows})


@app.command()
def report() -> None:
    """Renew the tables of docs/reliability.md."""
    update_page()


if __name__ == "__main__":
    app()
