"""One run of the demo, from the first process to the report: run -> judge -> write -> tell."""

from __future__ import annotations

import json
import shlex
from typing import Any

from rich.console import Console
from rich.text import Text

from pulse_registry.demo.board import Board
from pulse_registry.demo.chart import draw
from pulse_registry.demo.crew import Crew, DemoFailed
from pulse_registry.demo.display import Display, size, tables
from pulse_registry.demo.report import make_report
from pulse_registry.demo.settings import Settings
from pulse_registry.demo.verdict import Verdict, judge
from pulse_registry.process.private_files import new_file
from pulse_registry.quoting import printable, say


def run_and_show(settings: Settings, *, json_output: bool) -> int:
    """Run the demo, leave its report and chart in ``settings.out``, and return the exit status."""
    console = Console(stderr=json_output, markup=False, emoji=False)
    board = Board(settings)
    where = f"Registry {settings.root}, run {settings.run}; logs in {settings.out / 'logs'}"
    console.print(printable(where), highlight=False, soft_wrap=True)
    try:
        with Display(console, board) as display, Crew(settings) as crew:
            for event in crew.watch():
                board.tick()
                if event is not None:
                    board.add(event)
                display.show(event)
    except KeyboardInterrupt:
        say("pulse demo: stopped; no process is left", error=True)
        return 130
    except DemoFailed as error:
        for line in f"pulse demo: {error}".splitlines():
            say(line, error=True)
        return 1
    verdict = judge(board)
    report = make_report(board, verdict)
    with open(new_file(settings.out / "report.json", mode=0o644), "w", encoding="utf-8") as file:
        file.write(json.dumps(report, indent=1) + "\n")
    draw(board, settings.out / "report.png")
    if json_output:
        print(json.dumps(report, indent=1))
    _tell(console, board, report, verdict)
    return 0 if verdict.good else 1


def _tell(console: Console, board: Board, report: dict[str, Any], verdict: Verdict) -> None:
    settings, totals = board.settings, report["totals"]
    console.print()
    for part in tables(board):
        console.print(part)
    for verb in ("pushed", "pulled"):
        moved, whole = totals[f"{verb}_bytes"], totals[f"{verb}_bytes_full"]
        console.print(f"{verb.capitalize()} {size(moved)}; as full weights it would be {size(whole)}.", highlight=False)
    if verdict.good:
        split = len(settings.sharded_names)
        whose = (
            f"{len(board.workers) - split + 1} workers, one of {split} ranks,"
            if split
            else f"{len(board.workers)} workers"
        )
        equal = (
            f" all {whose} end with the trainer's version "
            f"{board.newest}, and after each of {verdict.pulls} pulls they held the trainer's cells (SHA-256 of all of "
            f"them). The store holds {verdict.versions} versions and passes Registry.verify."
        )
        console.print(Text.assemble(("Bit for bit:", "bold green"), equal))
    for problem in verdict.problems:
        console.print(Text.assemble(("NOT EQUAL:", "bold red"), f" {printable(problem)}"))
    console.print(printable(f"Report, chart and logs: {settings.out}"), highlight=False, soft_wrap=True)
    console.print(
        printable(f"Look around: pulse log --root {shlex.quote(settings.root)} --run {settings.run}"),
        highlight=False,
        soft_wrap=True,
    )
