"""``pulse route``: shows which route a pull would take, and what other routes would cost."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pulse_registry.cli.options import AllowHttp, Json, Root, Run, Token, Trusted, parse_version
from pulse_registry.cli.output import print_json, print_table, size
from pulse_registry.cli.session import Access, open_session
from pulse_registry.pull.explain import Alternative, alternatives, cost
from pulse_registry.pull.route import Route, plan
from pulse_registry.quoting import say
from pulse_registry.store.wrappers.measured import DEFAULT_OBJECT_COST

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
    ] = DEFAULT_OBJECT_COST,
    token: Token = None,
    allow_http: AllowHttp = False,
    trust: Trusted = None,
    json_output: Json = False,
) -> None:
    """Show the cheapest route from a version, or from nothing, to another, and what others would cost."""
    target, have = parse_version(to), None if from_version is None else parse_version(from_version)
    with open_session(Access(root, token, allow_http, trust), run, title="route", quiet=json_output) as session:
        target = session.registry.version(target).version
        if have is not None:
            have = session.registry.version(have).version
        state = session.registry.state()
        found = plan(state, target, have=have, object_cost=object_cost)
        others = alternatives(state, found, have, object_cost)
    if json_output:
        print_json(_document(found, others, object_cost))
    else:
        _print(found, others, object_cost)


def _figures(found: Route | None, object_cost: int) -> dict[str, int | None]:
    if found is None:
        return {"bytes": None, "objects": None, "cost": None}
    return {"bytes": found.nbytes, "objects": found.objects, "cost": cost(found, object_cost)}


def _document(found: Route, others: tuple[Alternative, ...], object_cost: int) -> dict[str, Any]:
    return {
        "version": found.target,
        "base": found.base,
        **_figures(found, object_cost),
        "object_cost": object_cost,
        "legs": _legs(found),
        "instead": [{"way": other.way, **_figures(other.route, object_cost)} for other in others],
    }


def _legs(found: Route) -> list[dict[str, Any]]:
    return [
        {"kind": leg.kind, "base": leg.base, "target": leg.target, "bytes": leg.nbytes, "objects": leg.objects}
        for leg in found.legs
    ]


def _print(found: Route, others: tuple[Alternative, ...], object_cost: int) -> None:
    origin = "nothing" if found.base is None else f"version {found.base}"
    say(f"from {origin} to version {found.target}: {size(found.nbytes)} in {found.objects} objects")
    if not found.legs:
        return
    print_table(("kind", "base", "target", "bytes", "objects"), [tuple(leg.values()) for leg in _legs(found)])
    here = cost(found, object_cost)
    say(f"cheapest at {size(object_cost)} an object: {size(here)}; instead of")
    for other in others:
        say(f"  {_WAYS[other.way]}: {_compared(other.route, found, here, object_cost)}")


def _compared(other: Route | None, found: Route, here: int, object_cost: int) -> str:
    if other is None:
        return "is not there"
    if other.legs == found.legs:
        return "is this one"
    figures = f"{size(other.nbytes)} in {other.objects} objects, {size(cost(other, object_cost))}"
    return f"{figures}: {cost(other, object_cost) / max(1, here):.3g} times as much"
