"""Routes: the cheapest route from a version to another, with URLs for the objects on it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from fastapi.responses import Response

from pulse_registry.errors import NotFound
from pulse_registry.log import RunState
from pulse_registry.pull.route import Leg, Route, plan
from pulse_registry.store.prices import USUAL, Prices
from pulse_schemas import ObjectRef
from pulse_schemas.api import LegBody, ObjectBody, RouteBody
from pulse_server.routes import examples
from pulse_server.routes.dependencies import ReadRun
from pulse_server.routes.operation import answer, hot, operations, problem
from pulse_server.routes.params import DECIMAL, Boolean, Number, between, text, whole
from pulse_server.runs.feed import RunFeed
from pulse_server.service import Service
from pulse_server.transport.answers import FreshRoute, Rendered
from pulse_server.transport.urls import Urls

router = operations("routes")

From = Annotated[Number | None, whole("the version that the worker holds; without it, none", 41, alias="from")]
To = Annotated[str, text("`latest` (where it is left out), or a number", r"latest|0|[1-9][0-9]{0,11}", "latest")]
Sign = Annotated[Boolean, Query(description="whether objects come with URLs")]
Legs = Annotated[int, between(1, 1_000), DECIMAL, whole("legs of the route at most: `next` is where it goes on", 100)]
Cost = Annotated[int, between(0, 1 << 40), DECIMAL, whole("bytes that one more object is worth", USUAL.object_cost)]
CellCost = Annotated[
    int, between(0, 1 << 20), DECIMAL, whole("bytes that one more changed cell to decode is worth", USUAL.cell_cost)
]


@router.get(
    "/v1/runs/{run}/route",
    summary="Find the cheapest route to a version",
    response_model=RouteBody,
    responses={
        200: answer(
            "The legs of the route, in order; none if the worker has the version already. Of a long route, the first "
            "ones: `target` is the version that they lead to, and `next`, the `from` of the request for the others.",
            RouteBody(
                run=examples.RUN,
                base=41,
                target=42,
                nbytes=examples.OBJECT.size,
                legs=(
                    LegBody(kind="patch", base=41, target=42, nbytes=examples.OBJECT.size, objects=(examples.OBJECT,)),
                ),
                layout=examples.LAYOUT,
                digest=examples.DIGEST,
                expires_at=examples.WHEN,
            ),
        ),
        404: problem("There is no such run or version, or no route to it."),
        410: problem("The version was retired."),
    },
)
@hot
async def find_route(
    run: ReadRun,
    base: From = None,
    to: To = "latest",
    sign: Sign = True,
    object_cost: Cost = USUAL.object_cost,
    cell_cost: CellCost = USUAL.cell_cost,
    limit: Legs = 1_000,
) -> Response:
    """Find a route."""
    service, feed = run.service, await run.feed()
    target = await _target(feed, to, base)
    state = feed.state
    key = ("route", state.run, state.last, base, target, sign, object_cost, cell_cost, limit)
    kept = service.routes.get(key)
    if kept is None or kept.fresh_until <= service.urls.now:
        prices = Prices(object_cost, cell_cost)
        found = await service.render(plan, state, target, have=base, prices=prices, most=limit)
        kept = await _make(service, state, found, target, sign)
        service.routes.keep(key, kept, len(kept.rendered.body))
    return kept.rendered.aged(feed.age_s)


async def _target(feed: RunFeed, to: str, base: int | None) -> int:
    """Return the version that is asked for, having looked at the log once more if it is not known yet."""
    newest = max(-1 if base is None else base, -1 if to == "latest" else int(to))
    if newest >= len(feed.state.versions):
        await feed.refresh()
    if to != "latest":
        return feed.state.version(int(to)).version
    if feed.state.latest is None:
        raise NotFound(f"run {feed.run!r} has no versions yet")
    return feed.state.latest.version


async def _make(service: Service, state: RunState, found: Route, target: int, sign: bool) -> FreshRoute:
    wanted = [ref.key for leg in found.legs for ref in _objects(leg)]
    urls = Urls({}, None, float("inf"))
    if sign:
        urls = await service.urls_of(state.run, wanted)
        service.metrics.signed_bytes.labels("get").inc(found.nbytes if service.urls.signs else 0)
    return FreshRoute(await service.render(_render, state, found, target, urls), urls.fresh_until)


def _render(state: RunState, found: Route, target: int, urls: Urls) -> Rendered:
    return Rendered.of(_body(state, found, target, urls))


def _body(state: RunState, found: Route, target: int, urls: Urls) -> RouteBody:
    entry = state.version(found.target)
    legs = tuple(
        LegBody(
            # With no undo in the service's memory, the other kinds are all there are.
            kind="keyframe" if leg.keyframe else "patch" if leg.kind == "patch" else "inverse",
            base=leg.base,
            target=leg.target,
            nbytes=leg.nbytes,
            objects=tuple(
                ObjectBody.model_construct(key=ref.key, size=ref.size, blake3=ref.blake3, url=urls.by_key.get(ref.key))
                for ref in _objects(leg)
            ),
        )
        for leg in found.legs
    )
    return RouteBody(
        run=state.run,
        base=found.base,
        target=found.target,
        nbytes=found.nbytes,
        legs=legs,
        layout=entry.layout,
        digest=entry.digest,
        expires_at=urls.expires_at,
        next=None if found.target == target else found.target,
    )


def _objects(leg: Leg) -> tuple[ObjectRef, ...]:
    if leg.patch is not None:
        return (leg.patch.object,)
    return () if leg.keyframe is None else (leg.keyframe.index, *leg.keyframe.shards)
