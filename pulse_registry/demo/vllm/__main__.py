"""``python -m pulse_registry.demo.vllm``: run the demo with engines; see ``make demo-vllm``."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pulse_registry.demo.ending import to_the_end
from pulse_registry.demo.settings import NotPossible
from pulse_registry.demo.vllm.chart import draw
from pulse_registry.demo.vllm.events import (
    Committed,
    Completed,
    Followed,
    NotFollowed,
    Serving,
    Stepped,
    Trained,
)
from pulse_registry.demo.vllm.report import make_report
from pulse_registry.demo.vllm.session import Session
from pulse_registry.demo.vllm.settings import Settings
from pulse_registry.quoting import printable, say

app = typer.Typer(add_completion=False)


@app.command()
def main(
    trainer_python: Annotated[Path, typer.Option(help="A Python with TRL and this package.")],
    engine_python: Annotated[Path, typer.Option(help="A Python with vLLM and this package.")],
    steps: Annotated[int, typer.Option(min=1, help="How many training steps.")] = 10,
    model: Annotated[str | None, typer.Option(metavar="PATH_OR_PACKAGE", help="A folder, a file or a package.")] = None,
    learning_rate: Annotated[float, typer.Option(min=0.0, help="Of AdamW.")] = 1e-6,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the report goes.")] = None,
) -> None:
    """Train with TRL while real vLLM servers follow, and compare them with a fresh one at the end."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        settings = Settings.of(
            steps=steps,
            model=model,
            out=out,
            trainer_python=trainer_python,
            engine_python=engine_python,
            learning_rate=learning_rate,
        )
    except NotPossible as error:
        say(f"demo: {error}", error=True)
        raise typer.Exit(2) from None
    raise typer.Exit(_run(settings, Console(markup=False, emoji=False)))


def _run(settings: Settings, console: Console) -> int:
    console.print(printable(f"Logs and models in {settings.out}"), highlight=False, soft_wrap=True)

    def run() -> dict[str, Any]:
        with Session(settings) as session:
            for event in session.watch():
                if not isinstance(event, Completed):
                    line = f"{session.board.seconds(event.at):6.1f} s  {_line(event)}"
                    console.print(printable(line), highlight=False, soft_wrap=True)
        assert session.proof is not None
        draw(session.board, Path(settings.model).name, settings.out / "report.png")
        return make_report(settings, session.board, session.proof)

    report = to_the_end("demo", settings.out, run)
    if isinstance(report, int):
        return report
    _tell(console, report)
    console.print(printable(f"Report, chart and logs: {settings.out}"), highlight=False, soft_wrap=True)
    return 0 if report["ok"] else 1


def _line(event: Committed | Stepped | Serving | Followed | NotFollowed | Trained) -> str:
    match event:
        case Committed():
            cells = (
                "all cells" if event.kind == "keyframe" else f"{100 * event.changed / event.cells:.3f} % of the cells"
            )
            return f"version {event.version} is committed: {event.nbytes / 1e6:,.2f} MB, {cells}"
        case Stepped():
            return f"step {event.step}: reward {event.reward:.3f}"
        case Serving():
            return f"{event.engine} serves version {event.version}, {event.seconds:.0f} s after it was asked to start"
        case Followed():
            over = f"{event.before} -> {event.version}"
            return f"{event.engine}: {over}, staged in {event.stage_s:.2f} s, paused {event.pause_s * 1e3:.0f} ms"
        case NotFollowed():
            return f"{event.engine} was not changed, and serves on: {event.message}"
        case Trained():
            return "the trainer has ended"


def _tell(console: Console, report: dict[str, Any]) -> None:
    table = Table(title="Engines")
    for column in ("engine", "loaded from", "changes", "now at", "median pause", "longest pause"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    for engine in report["engines"]:
        changes, pauses = engine["changes"], [1e3 * change["pause_s"] for change in engine["changes"]]
        newest = changes[-1]["version"] if changes else engine["loaded"]
        shown = (f"{1e3 * engine['median_pause_s']:.0f} ms", f"{max(pauses):.0f} ms") if changes else ("", "")
        table.add_row(engine["name"], str(engine["loaded"]), str(len(changes)), str(newest), *shown)
    console.print()
    console.print(table)
    streams, proof = report["streams"], report["proof"]
    console.print(
        f"Streamed meanwhile: {streams['completions']} completions, {streams['tokens']:,} tokens, none broken off; "
        f"{streams['of_several_versions']} were begun with one version and ended with another."
    )
    if report["ok"]:
        names = " and ".join(proof["equal"])
        console.print(
            Text.assemble(
                ("Bit for bit:", "bold green"),
                f" {names} hold version {proof['version']} in each live cell, and give the tokens and all "
                f"{proof['logprobs']} log-probabilities of a fresh vLLM that loaded it from disk (version "
                f"{report['engines'][0]['loaded']} has {proof['control']} of them). The trainer has the same weights.",
            )
        )
    for problem in proof["problems"]:
        console.print(Text.assemble(("NOT EQUAL:", "bold red"), f" {printable(problem)}"))


def _leave(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    app()
