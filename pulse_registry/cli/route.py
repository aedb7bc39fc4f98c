"""``pulse route``: shows which route a pull would take, and what other routes would cost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pulse_registry.cli.options import AllowHttp, Json, Root, Run, Token, Trusted, parse_version
from pulse_registry.cli.output import print_json, print_table, size
from pulse_registry.cli.session import Access, open_session
from pulse_registry.pull.explain import Alternative, alternatives
from pulse_registry.pull.route import Route, plan
from pulse_registry.quoting import say
from pulse_registry.store.prices import USUAL, Prices

_WAYS = {"chain": "version by version", "keyframe": "a keyframe and what follows", "direct": "one direct patch"}


def route(
    root: Root,
    run: Run,
    from_version: Annotated[
        str | None, typer.Option("--from", metavar="V", help="The version at hand; without it, nothing is.")
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar="V", help="A version's number, latest, or a tag.")] = "latest",
    object_cost: Annotated[
        int, typer.Option("--object-cost", metavar="BYTES", help="What one object more to fetch is worth.")
    ] = USUAL.object_cost,
    cell_cost: Annotated[
        int, typer.Option("--cell-cost", metavar="BYTES", help="What one changed cell more to decode is worth.")
    ] = USUAL.cell_cost,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    json_output: Json = False,
) -> None:
    """Show the cheapest route from a version, or from nothing, to another, and what others would cost."""
    prices = Prices(object_cost, cell_cost)
    target, have = parse_version(to), None if from_version is None else parse_version(from_version)
    with open_session(Access(root, token, allow_http, trust), run, title="route", quiet=json_output) as session:
        target = session.registry.version(target).version
        if have is not None:
            have = session.registry.version(have).version
        state = session.registry.state()
        found = plan(state, target, have=have, prices=prices)
        others = alternatives(state, found, have, prices)
    if json_output:
        print_json(_document(found, others, prices))
    else:
        _print(found, others, prices)


def _figures(found: Route | None, prices: Prices) -> dict[str, int | None]:
    if found is None:
        return {"bytes": None, "objects": None, "decoded": None, "cost": None}
    cost = prices.of(found)
    return {"bytes": found.nbytes, "objects": found.objects, "decoded": found.decoded, "cost": cost}


def _document(found: Route, others: tuple[Alternative, ...], prices: Prices) -> dict[str, Any]:
    return {
        "version": found.target,
        "base": found.base,
        **_figures(found, prices),
        **prices._asdict(),
        "legs": _legs(found),
        "instead": [{"way": other.way, **_figures(other.route, prices)} for other in others],
    }


def _legs(found: Route) -> list[dict[str, Any]]:
    return [
        {"kind": leg.kind, "base": leg.base, "target": leg.target, "bytes": leg.nbytes, "objects": leg.objects}
        for leg in found.legs
    ]


def _print(found: Route, others: tuple[Alternative, ...], prices: Prices) -> None:
    origin = "nothing" if found.base is None else f"version {found.base}"
    say(f"from {origin} to version {found.target}: {size(found.nbytes)} in {found.objects} objects")
    if not found.legs:
        return
    print_table(("kind", "base", "target", "bytes", "objects"), [tuple(leg.values()) for leg in _legs(found)])
    here = prices.of(found)
    each = f"{size(prices.object_cost)} an object and {size(prices.cell_cost)} a decoded cell"
    say(f"cheapest at {each}: {size(here)}; instead of")
    for other in others:
        say(f"  {_WAYS[other.way]}: {_compared(other.route, found, here, prices)}")


def _compared(other: Route | None, found: Route, here: int, prices: Prices) -> str:
    if other is None:
        return "is not there"
    if other.legs == found.legs:
        return "is this one"
    figures = f"{size(other.nbytes)} in {other.objects} objects, {size(prices.of(other))}"
    return f"{figures}: {prices.of(other) / max(1, here):.3g} times as much"
