"""The operations of the service's routes, as its tests go through them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from pulse_server.openapi import document
from pulse_server.routes import ROUTERS
from pulse_server.routes.operation import Operation


@dataclass(frozen=True, slots=True)
class Described:
    """One operation; ``example`` is its path with the examples of its parameters."""

    method: str
    path: str
    example: str
    takes_body: bool
    max_body: int | None
    tag: str


@functools.cache
def api() -> dict[str, Any]:
    """Return the API's description, which takes a third of a second to make; nobody changes it."""
    return document()


def described() -> list[Described]:
    """Return all operations, in the order of the routes."""
    paths, found = api()["paths"], []
    for router in ROUTERS:
        for route in router.routes:
            assert isinstance(route, Operation)
            for method in sorted(route.methods or ()):
                told = paths[route.path_format][method.lower()]
                path = route.path_format
                for parameter in told.get("parameters", []):
                    for example in parameter["schema"].get("examples", []):
                        path = path.replace(f"{{{parameter['name']}}}", str(example))
                limit = route.body_limit.nbytes
                found.append(Described(method, route.path, path, "requestBody" in told, limit, str(route.tags[0])))
    return found
