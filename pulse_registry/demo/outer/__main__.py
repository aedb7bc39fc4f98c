"""``python -m pulse_registry.demo.outer``: run the demo of outer rounds; see ``make demo-outer``."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from pulse_registry.demo.display import size
from pulse_registry.demo.ending import to_the_end
from pulse_registry.demo.outer.board import Board
from pulse_registry.demo.outer.chart import draw
from pulse_registry.demo.outer.events import Changed, Ended, Event, Joined, Pulled, Trained
from pulse_registry.demo.outer.report import make_report
from pulse_registry.demo.outer.session import Session
from pulse_registry.demo.outer.settings import TRAINERS, WORKERS, Settings
from pulse_registry.demo.outer.verdict import problems
from pulse_registry.demo.settings import NotPossible
from pulse_registry.quoting import printable, say

app = typer.Typer(add_completion=False)


@app.command()
def main(
    model: Annotated[str | None, typer.Option(metavar="PATH_OR_PACKAGE", help="Or tiny, a toy.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How many outer rounds, at least.")] = 9,
    layers: Annotated[int, typer.Option(min=1, help="How many of the model's layers are trained, the topmost.")] = 10,
    inner_steps: Annotated[int, typer.Option(min=1, help="Steps of AdamW in a round.")] = 4,
    learning_rate: Annotated[float, typer.Option(min=0.0, help="Of AdamW.")] = 3e-6,
    gain: Annotated[float, typer.Option(min=0.0, help="Of the gate.")] = 14.0,
    grace: Annotated[float, typer.Option(min=0.0, help="Seconds that a round waits for the late.")] = 60.0,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the report goes.")] = None,
) -> None:
    """Train one model by four processes through a bucket, disturb them, and compare all at the end."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        settings = Settings.of(
            model=model,
            rounds=rounds,
            layers=layers,
            inner_steps=inner_steps,
            learning_rate=learning_rate,
            gain=gain,
            grace=grace,
            out=out,
        )
    except NotPossible as error:
        say(f"demo: {error}", error=True)
        raise typer.Exit(2) from None
    raise typer.Exit(_run(settings, Console(markup=False, emoji=False)))


def _run(settings: Settings, console: Console) -> int:
    console.print(printable(f"Logs and bucket in {settings.out}"), highlight=False, soft_wrap=True)

    def run() -> dict[str, Any]:
        with Session(settings) as session:
            for event in session.watch():
                line = f"{session.board.seconds(event.at):6.1f} s  {_line(event, session.board)}"
                console.print(printable(line), highlight=False, soft_wrap=True)
        draw(session.board, settings, settings.out / "report.png")
        return make_report(settings, session.board, problems(session.board))

    report = to_the_end("demo", settings.out, run)
    if isinstance(report, int):
        return report
    _tell(console, report)
    console.print(printable(f"Report, chart and logs: {settings.out}"), highlight=False, soft_wrap=True)
    return 0 if report["ok"] else 1


def _line(event: Event, board: Board) -> str:
    match event:
        case Changed():
            return f"{event.trainer} is {event.change}" if event.change != "returned" else f"{event.trainer} comes back"
        case Joined():
            rest = f", with what it had not sent of {event.unsent:,} cells" if event.unsent else ""
            return f"{event.trainer} has joined at round {event.round}{rest}"
        case Ended():
            late = f"; late: {', '.join(event.late)}" if event.late else ""
            return (
                f"{event.trainer}: round {event.round} of {len(event.members)} trainers{late}; sent "
                f"{100 * event.entries / max(1, event.cells):.2f} % of the cells in {size(event.nbytes)}"
                f"{'' if event.counts else ', too late for its round'}; reward {event.reward:.3f}; trained "
                f"{event.inner_s:.1f} s, then {event.outer_s:.1f} s"
            )
        case Trained():
            return f"{event.trainer} is done, at round {event.round}; SHA-256 {event.sha256[:16]}"
        case Pulled():
            return f"{event.worker}: version {event.version}, {size(event.nbytes)} in {event.seconds:.1f} s"


def _tell(console: Console, report: dict[str, Any]) -> None:
    sent, dense = report["sent_bytes"], report["sent_bytes_dense"]
    console.print()
    console.print(
        f"Sent {size(sent)}, {report['bits_per_entry']:.1f} bits an entry; dense FP32 would be {size(dense)}, "
        f"{dense / max(1, sent):,.0f} times as much.",
        highlight=False,
        soft_wrap=True,
    )
    if report["ok"]:
        equal = (
            f" after {report['rounds']} rounds all {len(TRAINERS)} trainers hold the same FP32 weights and momentum, "
            f"and {len(WORKERS)} workers the same BF16 version (SHA-256 of all cells). All "
            "rounds, made anew from the bucket by `pulse outer verify`, are the versions that were committed."
        )
        console.print(Text.assemble(("Bit for bit:", "bold green"), equal))
    for problem in report["problems"]:
        console.print(Text.assemble(("NOT AS IT SHOULD BE:", "bold red"), f" {printable(problem)}"))


def _leave(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    app()
