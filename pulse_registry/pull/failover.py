"""Failover: an object that is gone or damaged costs a pull another route, and not the pull.

The next best route is taken without it, and so on until none is left. What was retired meanwhile is no damage: then
the newer log says which way to go.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Final

from pulse_registry.context import Context
from pulse_registry.errors import CorruptObject, Gone, NotFound, StoreUnavailable
from pulse_registry.events import Event, EventKind
from pulse_registry.pull.request import PullRequest
from pulse_registry.pull.route import Route, plan
from pulse_registry.store import Store

MOST_AVOIDED: Final = 1_000
"""Objects that one pull, or one piece of a compactor's work, goes around: each costs a request and a search."""


class Routes:
    """The routes to one version, each without the objects that were found to be gone or damaged on those before it."""

    def __init__(self, context: Context, request: PullRequest) -> None:
        """Begin with all of them."""
        self._avoided: dict[str, str] = {}  # why, by key
        self._context = context
        self._state, self._entry = request.state, request.entry
        self._have = None if request.base is None else request.base.version
        self._undo = [step.base for step in request.undo]
        self._object_cost = context.object_cost()
        self._first: NotFound | CorruptObject | None = None
        self._told = 0
        self._dropped: set[str] = set()

    @property
    def avoided(self) -> tuple[str, ...]:
        """Keys of the objects that are gone or damaged, in the order in which they were found to be."""
        return tuple(self._avoided)

    def cheapest(self) -> Route:
        """Choose the cheapest one that is left, and tell of what it avoids; let a service know what will be read.

        Raises:
            Gone: the version was retired meanwhile.
            NotFound, CorruptObject: none is left; the first error that was learnt of.
        """
        if self._have is not None and self._state.find(self._have) is None:
            self._have = None  # so old that it was forgotten meanwhile
        try:
            route = plan(
                self._state,
                self._entry.version,
                have=self._have,
                undo=self._undo,
                object_cost=self._object_cost,
                avoid=self._avoided,
            )
        except Gone:
            raise
        except NotFound as error:
            if self._first is None:
                raise
            raise self._first from error
        for key, why in islice(self._avoided.items(), self._told, None):
            message = f"{why}; version {self._entry.version} is reached by another route"
            self._context.events.tell(Event(EventKind.OBJECT_AVOIDED, self._state.run, message, key))
        self._told = len(self._avoided)
        _announce(self._context.store, self._state.run, route)
        return route

    def avoid(self, route: Route, error: NotFound | CorruptObject) -> None:
        """Take note of what was wrong with a route; raise it where no other one can help."""
        key = _culprit(route, error)
        if key is None:
            raise error
        self._first = self._first or error
        if len(self._avoided) >= MOST_AVOIDED:
            raise self._first from error
        copies = self._context.copies
        if copies is not None and key not in self._dropped and copies.discard(key):
            self._dropped.add(key)  # the copy was damaged, and perhaps not the object
            return
        if self._context.refresh is not None:
            self._state = self._context.refresh()
        if self._state.is_live(key):
            self._avoided[key] = str(error)


def _culprit(route: Route, error: NotFound | CorruptObject) -> str | None:
    """Return the key of the route's object that an error is about; None where that can't be told."""
    if error.key is not None:
        return error.key if any(ref.key == error.key for ref in route.refs) else None
    # Objects that are as committed, and lead to other cells than were committed: one alone must be it.
    fetched = [leg for leg in route.legs if leg.objects]
    return fetched[0].refs[0].key if isinstance(error, CorruptObject) and len(fetched) == 1 else None


def _announce(store: Store, run: str, route: Route) -> None:
    """Let a service know at once what will be read."""
    gateway = store.gateway()
    if gateway is not None and route.objects:
        with suppress(NotFound, StoreUnavailable):  # then each read asks by itself, and says what is wrong with it
            gateway.expect(run, [ref.key for ref in route.refs])
