"""``python -m benchmarks.outer quality``, ``bytes``, ``speed``, ``dense``: outer rounds; ``sample`` cuts test data."""

from __future__ import annotations

import typer

from benchmarks.outer.dense_store import run as dense
from benchmarks.outer.quality import run as quality
from benchmarks.outer.replay import run as count
from benchmarks.outer.sample import run as sample
from benchmarks.outer.speed import run as speed

app = typer.Typer(add_completion=False, help="Benchmarks of outer rounds.")
app.command(name="quality")(quality)
app.command(name="bytes")(count)
app.command(name="speed")(speed)
app.command(name="dense")(dense)
app.command(name="sample")(sample)

if __name__ == "__main__":
    app()
