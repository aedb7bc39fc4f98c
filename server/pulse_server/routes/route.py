"""Routes: the cheapest way from a version to another, with URLs for the objects on it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fastapi import Request
from fastapi.responses import Response

from pulse_registry.errors import NotFound
from pulse_registry.log import RunState
from pulse_registry.pull.route import Leg, Route, plan
from pulse_registry.store.wrappers.measured import DEFAULT_OBJECT_COST
from pulse_schemas import ObjectRef
from pulse_schemas.api import LegBody, ObjectBody, RouteBody
from pulse_server.routes import examples
from pulse_server.routes.common import RUN, feed_of
from pulse_server.routes.operations import Operation, Operations, Says
from pulse_server.routes.params import Choice, Parameter, Whole
from pulse_server.runs.feed import RunFeed
from pulse_server.transport.answers import FreshRoute, Rendered
from pulse_server.transport.urls import Urls

if TYPE_CHECKING:
    from pulse_server.service import Service

OPERATIONS: Final = Operations("routes")
_FROM: Final = Whole("from", "the version that the worker holds; without it, none", 41)
_TO: Final = Parameter(
    "to",
    "`latest` (where it is left out), or a number",
    re.compile(r"latest|0|[1-9][0-9]{0,11}", re.ASCII),
    "latest",
    "query",
    required=False,
)
_SIGN: Final = Choice("sign", "whether objects come with URLs", ("true", "false"), "true", boolean=True)
_COST: Final = Whole(
    "object_cost", "bytes that one more object is worth", DEFAULT_OBJECT_COST, DEFAULT_OBJECT_COST, high=1 << 40
)


@OPERATIONS.add(
    Operation(
        "GET",
        "/v1/runs/{run}/route",
        "read",
        "Find the cheapest way to a version",
        {
            200: Says(
                "The legs of the way, in order; none where the worker is there already.",
                RouteBody(
                    run=examples.RUN,
                    base=41,
                    target=42,
                    nbytes=examples.OBJECT.size,
                    legs=(
                        LegBody(
                            kind="patch", base=41, target=42, nbytes=examples.OBJECT.size, objects=(examples.OBJECT,)
                        ),
                    ),
                    layout=examples.LAYOUT,
                    digest=examples.DIGEST,
                    expires_at=examples.WHEN,
                ),
            )
        },
        parameters=(RUN, _FROM, _TO, _SIGN, _COST),
        refuses={
            404: "There is no such run or version, or nothing leads there.",
            410: "The version was retired.",
        },
    )
)
async def find_route(request: Request, service: Service) -> Response:
    """Find a route."""
    base, to, sign = _FROM(request), _TO(request) or "latest", _SIGN(request) != "false"
    cost = _COST(request) or 0
    feed = await feed_of(request, service)
    target = await _target(feed, to, base)
    state = feed.state
    key = ("route", state.run, state.last, base, target, sign, cost)
    kept = service.routes.get(key)
    if kept is None or kept.fresh_until <= service.urls.now:
        found = await service.call(plan, state, target, have=base, object_cost=cost)
        kept = await _make(service, state, found, sign)
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


async def _make(service: Service, state: RunState, found: Route, sign: bool) -> FreshRoute:
    wanted = [ref.key for leg in found.legs for ref in _objects(leg)]
    urls = Urls({}, None, float("inf"))
    if sign:
        urls = await service.urls_of(state.run, wanted)
        service.metrics.signed_bytes.labels("get").inc(found.nbytes if service.urls.signs else 0)
    return FreshRoute(await service.call(_render, state, found, urls), urls.fresh_until)


def _render(state: RunState, found: Route, urls: Urls) -> Rendered:
    return Rendered.of(_body(state, found, urls))


def _body(state: RunState, found: Route, urls: Urls) -> RouteBody:
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
    )


def _objects(leg: Leg) -> tuple[ObjectRef, ...]:
    if leg.patch is not None:
        return (leg.patch.object,)
    return () if leg.keyframe is None else (leg.keyframe.index, *leg.keyframe.shards)
