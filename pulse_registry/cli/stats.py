"""``pulse stats``: what the updates of a run are like, counted from its patches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pulse_registry.cli.options import AllowHttp, Json, Root, Run, Token, Trusted, parse_version
from pulse_registry.cli.output import print_json, print_table
from pulse_registry.cli.session import Access, open_session
from pulse_registry.options import ComputeOptions
from pulse_registry.quoting import say
from pulse_registry.stats import RunStats
from pulse_registry.stats.document import document
from pulse_registry.stats.plot import checked_suffix, write_plot
from pulse_registry.stats.run_stats import Total

_WHY = {
    "layout": "the tensors are others",
    "class": "a patch of coder class, which --weights reads",
    "keyframe": "a keyframe alone, which --weights reads",
    "gone": "no object leads from one to the other",
}
_LISTED = 10
"""Exponents and unseen steps that are shown to people; JSON has all."""


def stats(
    root: Root,
    run: Run,
    from_version: Annotated[
        str | None,
        typer.Option("--from", metavar="V", help="The version to begin with; without it, the 1,000th before."),
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar="V", help="A version's number, latest, or a tag.")] = "latest",
    weights: Annotated[
        bool,
        typer.Option("--weights", help="Follow the weights, too: signs, exponents, class patches and keyframes."),
    ] = False,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor, too.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="FILE", help="Keep the counts in FILE: the next time only new steps are read."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the stats into a .png, .svg or .pdf file, too.")
    ] = None,
    threads: Annotated[int, typer.Option("--threads", metavar="N", help="Threads that compute.")] = 1,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    json_output: Json = False,
) -> None:
    """Tell how sparse the run's updates are: how many cells change, where, by how much, and which of them again."""
    first, last = None if from_version is None else parse_version(from_version), parse_version(to)
    if plot is not None:
        checked_suffix(plot)
    access, compute = Access(root, token, allow_http, trust), ComputeOptions(threads=threads)
    with open_session(access, run, title="stats", quiet=json_output, compute=compute) as session:
        found = session.registry.stats(first, last, weights=weights, keep=keep)
        if plot is not None:
            write_plot(plot, found, {one.version: one.metadata for one in session.registry.versions()})
    if json_output:
        print_json(document(found))
        return
    _print(found, tensors=tensors)


def _print(found: RunStats, *, tensors: bool) -> None:
    say(f"versions {found.first} to {found.last} of run {found.run}: {len(found.steps)} steps")
    if found.steps:
        _print_windows(found)
        _print_totals("all tensors", [found.total])
        _print_totals("kind", found.by_kind)
        _print_totals("layer", found.by_layer)
        if tensors:
            _print_totals("tensor", found.by_tensor)
        _print_sizes(found)
        _print_exponents(found)
    for one in found.unseen[:_LISTED]:
        say(f"not seen: version {one.base} to {one.target}: {_WHY[one.why]}")
    if len(found.unseen) > _LISTED:
        say(f"not seen: {len(found.unseen) - _LISTED} more, which --json lists")


def _print_windows(found: RunStats) -> None:
    print_table(
        ("over versions", "times", "changed", "of those touched, back again"),
        [
            (one.length, one.windows, _percent(one.share), _percent(_ratio(one.came_back, one.touched)))
            for one in found.by_window
        ],
    )


def _print_totals(name: str, totals: list[Total]) -> None:
    print_table(
        (name, "cells of all steps", "changed", "of these, again", "signs flipped"),
        [
            (
                one.name,
                one.cells,
                _percent(one.share),
                _percent(one.overlap),
                _percent(_ratio(one.flipped, one.changed)),
            )
            for one in totals
        ],
    )


def _print_sizes(found: RunStats) -> None:
    rows = [
        (dtype, _span(power), count, _percent(count / max(1, int(counts.sum()))))
        for dtype, counts in sorted(found.sizes.items())
        for power, count in enumerate(counts.tolist())
        if count
    ]
    print_table(("dtype", "moved by steps", "changed cells", "of all changed"), rows)


def _print_exponents(found: RunStats) -> None:
    for dtype, counts in sorted(found.exponents.items()):
        rows = [
            (exponent, cells, _percent(changed / cells))
            for exponent, (cells, changed) in enumerate(
                zip(counts.cells.tolist(), counts.changed.tolist(), strict=True)
            )
            if cells
        ]
        print_table((f"exponent of {dtype}", "cells of all steps", "changed"), rows)


def _span(power: int) -> str:
    return "1" if not power else f"{1 << power} to {(2 << power) - 1}"


def _ratio(part: int | None, whole: int) -> float | None:
    return None if part is None or not whole else part / whole


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"
