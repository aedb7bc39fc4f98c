"""``python -m benchmarks``: measure, print, write; ``... links``, ``scale``, ``ladder``, ``pending``, ``hops``,
``slices``, ``planning``, ``bases``, ``growth``, ``profile``, ``stats`` and ``gpu`` do the rest.

``python -m benchmarks synthetic`` and ``... record`` write states, and ``... report`` renews docs/benchmarks.md and its
plots.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, cast, get_args

import typer
from rich.console import Console

from benchmarks.bases import run as bases
from benchmarks.growth.suite import run as growth
from benchmarks.hops import run as hops
from benchmarks.ladder import LADDER_SCALE, measure_ladder
from benchmarks.links import LINKS, links_document
from benchmarks.pending import run as pending
from benchmarks.planning import run as planning
from benchmarks.profile import run as profile
from benchmarks.push_pull import CODERS
from benchmarks.report import PAGE, update_page
from benchmarks.results import OUT
from benchmarks.scale import COPIES, measure_sizes
from benchmarks.show import finish
from benchmarks.slices import run as slices
from benchmarks.states import States, StatesError, load_states, save_states
from benchmarks.stats import run as stats
from benchmarks.suite import MIN_REPEATS, Parts, run_suite
from benchmarks.synthetic import DEFAULT_CELLS, DEFAULT_RATE, few_shapes, synthetic_states
from pulse_registry.format.patch_coding import CoderChoice
from tests.support import servers

app = typer.Typer(add_completion=False, help="Benchmarks of Pulse Registry.")
CORES = os.cpu_count() or 1
StatesOption = Annotated[Path | None, typer.Option(help="Folder of one safetensors file a state, in name order.")]
TitleOption = Annotated[str | None, typer.Option(help="What the recorded states are, in one line.")]
CellsOption = Annotated[int, typer.Option(help="Size of synthetic states.", min=10_000)]
StepsOption = Annotated[int, typer.Option(help="Steps of synthetic states.", min=1)]
SeedOption = Annotated[int, typer.Option(help="Of synthetic states.")]
ThreadsOption = Annotated[int, typer.Option(help="Of copies and of others' codecs.", min=1)]
OutOption = Annotated[Path, typer.Option(help="Folder of result files.")]


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    states: StatesOption = None,
    title: TitleOption = None,
    cells: CellsOption = DEFAULT_CELLS,
    steps: StepsOption = 8,
    seed: SeedOption = 0,
    repeats: Annotated[int, typer.Option(help="Of each measurement.", min=MIN_REPEATS)] = 9,
    threads: ThreadsOption = CORES,
    memory: Annotated[bool, typer.Option(help="Measure memory, in processes of its own.")] = True,
    peers: Annotated[bool, typer.Option(help="Measure others' codecs on the same states.")] = True,
    install: Annotated[bool, typer.Option(help="Install the one that is a package, in its own environment.")] = True,
    name: Annotated[str | None, typer.Option(help="Of the result file; default: from the states.")] = None,
    out: OutOption = OUT,
) -> None:
    """Measure everything on recorded or synthetic states, print it beside its limits, and write a result file."""
    if context.invoked_subcommand is not None:
        return
    console = Console()
    chosen = _states(console, states, title, cells, steps, seed)
    parts = Parts(memory=CODERS if memory else (), peers=peers, install=install)
    document = run_suite(chosen, threads, repeats, parts=parts, say=lambda what: console.print(f"... {what}"))
    chosen_name = name or _name(chosen.kind, chosen.title)
    finish(console, document, out / f"{chosen_name}.json", f"{chosen.title} ({chosen.kind})")


@app.command()
def synthetic(
    folder: Annotated[Path, typer.Argument(help="Where they go, one safetensors file a state.")],
    cells: CellsOption = DEFAULT_CELLS,
    steps: StepsOption = 8,
    seed: SeedOption = 0,
    rate: Annotated[
        float, typer.Option(help="Of learning: 1e-8 changes some 0.01 % a step, 1e-4 some 20 %.")
    ] = DEFAULT_RATE,
) -> None:
    """Write synthetic states, for --states: of a density that the learning rate makes."""
    states = synthetic_states(cells, steps, seed, rate=rate)
    folder.mkdir(parents=True, exist_ok=True)
    save_states(states, folder, steps + 1)
    changed = [states.changed(step) / states.cells for step in range(steps)]
    Console().print(f"{states.title}: {100 * min(changed):.3g} to {100 * max(changed):.3g} % change a step")


@app.command()
def record(
    folder: Annotated[Path, typer.Argument(help="Where they go, one safetensors file a state.")],
    seed: Annotated[int, typer.Option(help="Of the demo, whose own is 17.")] = 18,
    steps: Annotated[int, typer.Option(help="That the demo's trainer makes.", min=1)] = 23,
    states: Annotated[int, typer.Option(help="Of its versions, the last ones.", min=2)] = 9,
    model: Annotated[str | None, typer.Option(help="As pulse demo takes it.")] = None,
) -> None:
    """Record states for --states: the last versions of a run of the demo."""
    from benchmarks.record import record_steps  # torch is not of every benchmark

    written = record_steps(folder, seed, steps, min(states, steps + 1), model)
    found = load_states(folder)
    changed = [found.changed(step) / found.cells for step in range(len(found.steps))]
    Console().print(f"{len(written)} states: {100 * min(changed):.3g} to {100 * max(changed):.3g} % change a step")


@app.command()
def links(
    states: StatesOption = None,
    title: TitleOption = None,
    cells: CellsOption = DEFAULT_CELLS,
    steps: StepsOption = 8,
    seed: SeedOption = 0,
    repeats: Annotated[int, typer.Option(help="Steps brought to a worker in each way, over each link.", min=1)] = 5,
    threads: ThreadsOption = CORES,
    out: OutOption = OUT,
) -> None:
    """Measure pushes and pulls end to end over slow links to a local SeaweedFS; write a result file."""
    console = Console()
    chosen = _states(console, states, title, cells, steps, seed)
    with servers.seaweedfs() as server:
        os.environ.update(server.environment)
        document = links_document(chosen, LINKS, server, threads, repeats, lambda what: console.print(f"... {what}"))
    finish(console, document, out / "store" / "links.json")


@app.command()
def scale(
    coder: Annotated[str, typer.Option(help="gap, class or auto.")] = "auto",
    copies: Annotated[list[int] | None, typer.Option(help="Sizes, in copies of the synthetic policy.", min=1)] = None,
    cells: CellsOption = DEFAULT_CELLS,
    seed: SeedOption = 0,
    threads: ThreadsOption = CORES,
    folder: Annotated[Path | None, typer.Option(help="Where the registry goes; it needs room for a keyframe.")] = None,
    out: OutOption = OUT,
) -> None:
    """Measure pushes and pulls by model size, to what memory allows (Linux); write a result file."""
    if coder not in get_args(CoderChoice):
        raise typer.BadParameter(f"--coder is {coder!r}; it is one of {', '.join(get_args(CoderChoice))}")
    console = Console()
    document = measure_sizes(
        cells,
        copies or COPIES,
        cast(CoderChoice, coder),
        threads,
        folder=folder,
        seed=seed,
        say=lambda what: console.print(f"... {what}"),
    )
    finish(console, document, out / "scale.json")


@app.command()
def ladder(
    states: StatesOption = None,
    title: TitleOption = None,
    cells: CellsOption = 1_000_000,
    versions: Annotated[int, typer.Option(help="Of the synthetic run.", min=2)] = 4096,
    seed: SeedOption = 0,
    coder: Annotated[str, typer.Option(help="gap, class or auto.")] = "auto",
    starts: Annotated[int, typer.Option(help="Versions to be behind from.", min=1)] = 16,
    targets: Annotated[int, typer.Option(help="Versions to get to from each.", min=1)] = 64,
    out: OutOption = OUT,
) -> None:
    """Measure what being far behind costs with a compactor, against the chain and direct diffs; write a result file."""
    if coder not in get_args(CoderChoice):
        raise typer.BadParameter(f"--coder is {coder!r}; it is one of {', '.join(get_args(CoderChoice))}")
    console = Console()
    if states is None:
        console.print(f"making a synthetic run: {cells:,} cells, {versions:,} versions, seed {seed}")
        chosen = synthetic_states(cells, versions - 1, seed, shapes_of=few_shapes, scale=LADDER_SCALE)
    else:
        chosen = _states(console, states, title, cells, versions, seed)
    document = measure_ladder(
        chosen,
        starts=starts,
        targets=targets,
        coder=cast(CoderChoice, coder),
        seed=seed,
        say=lambda what: console.print(f"... {what}"),
    )
    finish(console, document, out / "ladder" / f"{chosen.kind}.json")


@app.command()
def gpu(
    cells: Annotated[list[int] | None, typer.Option(help="Sizes; default: 8 and 30 billion.", min=1)] = None,
    share: Annotated[float, typer.Option(help="Of the cells that change.", min=1e-6, max=1.0)] = 0.01,
    repeats: Annotated[int, typer.Option(help="Of each measurement.", min=1)] = 9,
    seed: Annotated[int, typer.Option(help="Of the cells.")] = 0,
    out: OutOption = OUT,
) -> None:
    """Measure the kernels on a CUDA device, beside torch's own ways; write a result file."""
    console = Console()
    try:
        import torch

        from benchmarks.gpu.suite import SIZES, gpu_document
    except ImportError as error:
        console.print(f"{error}: pip install 'pulse-registry[gpu]'", style="red")
        raise typer.Exit(2) from error
    if not torch.cuda.is_available():
        console.print("torch finds no CUDA device here: nothing was measured", style="red")
        raise typer.Exit(2)
    document = gpu_document("cuda", cells or SIZES, share, repeats, seed, lambda what: console.print(f"... {what}"))
    finish(console, document, out / "gpu.json", f"{document['title']}: {document['machine']['gpu']}")


app.command(name="pending")(pending)
app.command(name="hops")(hops)
app.command(name="slices")(slices)
app.command(name="planning")(planning)
app.command(name="bases")(bases)
app.command(name="growth")(growth)
app.command(name="profile")(profile)
app.command(name="stats")(stats)


@app.command()
def report() -> None:
    """Renew the tables and plots of docs/benchmarks.md from the result files."""
    print(f"{PAGE}: {'renewed' if update_page() else 'current'}")


def _states(console: Console, folder: Path | None, title: str | None, cells: int, steps: int, seed: int) -> States:
    """Load recorded states, or make synthetic ones."""
    if folder is None:
        console.print(f"making synthetic states: {cells:,} cells, {steps} steps, seed {seed}")
        return synthetic_states(cells, steps, seed)
    try:
        return load_states(folder, title)
    except StatesError as error:
        console.print(str(error), style="red")
        raise typer.Exit(2) from error


def _name(kind: str, title: str) -> str:
    return "synthetic" if kind == "synthetic" else re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60]


if __name__ == "__main__":
    sys.exit(app())
