"""Failover: plan the route of a pull, or of a compaction task, anew without objects that are gone or damaged.

The next best route is taken without it, and so on until none is left. What was retired meanwhile is no damage: then
the newer log says which way to go.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final, Self

from pulse_registry.context import Context
from pulse_registry.errors import CorruptObject, Gone, NotFound
from pulse_registry.events import Event, EventKind
from pulse_registry.format.keys import named_key
from pulse_registry.log import RunState
from pulse_registry.pull.announce import announce
from pulse_registry.pull.request import PullRequest
from pulse_registry.pull.route import Route, plan
from pulse_registry.pull.sliced_destination import SlicedDestination
from pulse_registry.store.prices import USUAL, Prices

MOST_AVOIDED: Final = 1_000
"""Objects that one pull, or one compaction task, goes around: each costs a request and a search."""


class Routes:
    """The routes to one version, each without the objects that were found to be gone or damaged on those before it.

    Attributes:
        have: the version that the next route begins with; None: nothing known. Who follows a route in part sets it.
    """

    def __init__(
        self,
        context: Context,
        state: RunState,
        version: int,
        *,
        have: int | None,
        undo: Sequence[int] = (),
        keyframes: bool = True,
        prices: Prices = USUAL,
    ) -> None:
        """Begin with all of them.

        Args:
            context: who hears of objects that are avoided, how the log is read anew, and the cache.
            state: the run, as it was last seen.
            version: where to.
            have: the version that is held; None: nothing known.
            undo: the bases of the steps that can be taken back in memory, newest first.
            keyframes: whether a route may begin with one.
            prices: by which the cheapest is chosen.
        """
        self.have = have
        self._avoided: dict[str, str] = {}  # why, by key
        self._context = context
        self._state, self._version = state, version
        self._undo, self._keyframes = undo, keyframes
        self._prices = prices
        self._first: NotFound | CorruptObject | None = None
        self._told = 0
        self._only_gap = False
        self._dropped: set[str] = set()

    @classmethod
    def of(cls, context: Context, request: PullRequest) -> Self:
        """Return the routes of a pull."""
        have = None if request.base is None else request.base.version
        undo, prices = [step.base for step in request.undo], context.prices()
        routes = cls(context, request.state, request.entry.version, have=have, undo=undo, prices=prices)
        destination = request.destination
        routes._only_gap = isinstance(destination, SlicedDestination) and not destination.slices.whole
        return routes

    @property
    def state(self) -> RunState:
        """The run, as it was last seen."""
        return self._state

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
        if self.have is not None and self._state.find(self.have) is None:
            self.have = None  # so old that it was forgotten meanwhile
        try:
            route = plan(
                self._state,
                self._version,
                have=self.have,
                undo=self._undo,
                prices=self._prices,
                avoid=self._avoided,
                keyframes=self._keyframes,
                only_gap=self._only_gap,
            )
        except Gone:
            raise
        except NotFound as error:
            if self._first is not None:
                raise self._first from error
            if self._only_gap and len(self._state.edges.rows_of_class()):
                raise NotFound(
                    f"{error}. Patches of coder 'class' are left out, since the slices hold groups in part: push, or "
                    "compact, with coder='gap', or pull whole tensors; or let ranks pull together with "
                    "PullOptions(host_copy=True)"
                ) from error
            raise
        for key, why in islice(self._avoided.items(), self._told, None):
            message = f"{why}; version {self._version} is reached by another route"
            self._context.events.tell(Event(EventKind.OBJECT_AVOIDED, self._state.run, message, key))
        self._told = len(self._avoided)
        announce(self._context.store, self._state.run, [ref.key for ref in route.refs])
        return route

    def avoid(self, route: Route, error: NotFound | CorruptObject) -> None:
        """Take note of what was wrong with a route; raise it where no other one can help."""
        key = _culprit(route, error)
        if key is None:
            raise error
        self._first = self._first or error
        if len(self._avoided) >= MOST_AVOIDED:
            raise self._first from error
        copies, stored = self._context.copies, error.key or key
        if copies is not None and stored not in self._dropped and copies.discard(stored):
            self._dropped.add(stored)  # the copy was damaged, and perhaps not the object
            return
        if self._context.refresh is not None:
            self._state = self._context.refresh()
        if self._state.is_live(key):
            self._avoided[key] = str(error)


def _culprit(route: Route, error: NotFound | CorruptObject) -> str | None:
    """Return the key of the route's object that an error, which may be of a part, is about; None: it can't be told."""
    if error.key is not None:
        key = named_key(error.key)
        return key if any(ref.key == key for ref in route.refs) else None
    # Objects that are as committed, and lead to other cells than were committed: one alone must be it.
    fetched = [leg for leg in route.legs if leg.objects]
    return fetched[0].refs[0].key if isinstance(error, CorruptObject) and len(fetched) == 1 else None
