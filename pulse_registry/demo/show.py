"""One run of the demo, from the first process to the report: run -> judge -> write -> tell."""

from __future__ import annotations

import json
import shlex
from typing import Any

from rich.console import Console
from rich.text import Text

from pulse_registry.demo.board import Board
from pulse_registry.demo.chart import draw
from pulse_registry.demo.crew import Crew
from pulse_registry.demo.display import Display, size, tables
from pulse_registry.demo.ending import to_the_end
from pulse_registry.demo.report import make_report
from pulse_registry.demo.settings import Settings
from pulse_registry.demo.verdict import judge
from pulse_registry.quoting import printable


def run_and_show(settings: Settings, *, json_output: bool) -> int:
    """Run the demo, leave its report and chart in ``settings.out``, and return the exit status."""
    console = Console(stderr=json_output, markup=False, emoji=False)
    board = Board(settings)
    where = f"Registry {settings.root}, run {settings.run}; logs in {settings.out / 'logs'}"
    console.print(printable(where), highlight=False, soft_wrap=True)

    def run() -> dict[str, Any]:
        with Display(console, board) as display, Crew(settings) as crew:
            for event in crew.watch():
                board.tick()
                if event is not None:
                    board.add(event)
                display.show(event)
        return make_report(board, judge(board))

    report = to_the_end("pulse demo", settings.out, run)
    if isinstance(report, int):
        return report
    draw(board, settings.out / "report.png")
    if json_output:
        print(json.dumps(report, indent=1))
    _tell(console, board, report)
    return 0 if report["ok"] else 1


def _tell(console: Console, board: Board, report: dict[str, Any]) -> None:
    settings, totals, checks = board.settings, report["totals"], report["checks"]
    console.print()
    for part in tables(board):
        console.print(part)
    for verb in ("pushed", "pulled"):
        moved, whole = totals[f"{verb}_bytes"], totals[f"{verb}_bytes_full"]
        console.print(f"{verb.capitalize()} {size(moved)}; as full weights it would be {size(whole)}.", highlight=False)
    if report["ok"]:
        split = len(settings.sharded_names)
        whose = (
            f"{len(board.workers) - split + 1} workers, one of {split} ranks,"
            if split
            else f"{len(board.workers)} workers"
        )
        equal = (
            f" all {whose} end with the trainer's version {board.newest}, and after each of "
            f"{checks['pulls_compared']} pulls they held the trainer's cells (SHA-256 of all of them). The store holds "
            f"{checks['versions_in_store']} versions and passes Registry.verify."
        )
        console.print(Text.assemble(("Bit for bit:", "bold green"), equal))
    for problem in checks["problems"]:
        console.print(Text.assemble(("NOT EQUAL:", "bold red"), f" {printable(problem)}"))
    console.print(printable(f"Report, chart and logs: {settings.out}"), highlight=False, soft_wrap=True)
    console.print(
        printable(f"Look around: pulse log --root {shlex.quote(settings.root)} --run {settings.run}"),
        highlight=False,
        soft_wrap=True,
    )
