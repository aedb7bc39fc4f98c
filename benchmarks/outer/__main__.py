"""``python -m benchmarks.outer quality``, ``grpo``, ``bytes``, ``speed``, ``dense``; ``sample`` cuts test data."""

from __future__ import annotations

import typer

from benchmarks.outer.dense_store import run as dense
from benchmarks.outer.grpo import run as grpo
from benchmarks.outer.quality import run as quality
from benchmarks.outer.replay import run as count
from benchmarks.outer.sample import run as sample
from benchmarks.outer.speed import run as speed

app = typer.Typer(add_completion=False, help="Benchmarks of outer rounds.")
app.command(name="quality")(quality)
app.command(name="grpo")(grpo)
app.command(name="bytes")(count)
app.command(name="speed")(speed)
app.command(name="dense")(dense)
app.command(name="sample")(sample)

if __name__ == "__main__":
    app()
