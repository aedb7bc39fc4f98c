"""Fair scheduling: no caller has all places, and callers that wait are served round-robin, however much they ask."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

CALLER: Final[ContextVar[str]] = ContextVar("pulse_caller", default="")
"""Who asks: a token's id, or an address for a request without a good token; "" for the service itself."""


def begin_for_all(work: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
    """Begin what all share who ask for it: it waits in the service's own line, and in nobody else's."""
    context = copy_context()
    context.run(CALLER.set, "")
    return asyncio.get_running_loop().create_task(work, name=name, context=context)


class Turns:
    """So many places; a caller has ``each`` at most. Not thread-safe: one event loop asks.

    A place that is free goes to the caller whose turn was longest ago; of its own calls, the one that came first.
    """

    def __init__(self, places: int, each: int) -> None:
        """Begin with all of them free."""
        self._free, self._each = places, each
        self._held: Counter[str] = Counter()
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def __len__(self) -> int:
        """Return how many callers have a place, or wait for one."""
        return len(self._held.keys() | self._lines.keys())

    async def take(self, whose: str) -> None:
        """Wait for a place; `release` it."""
        if self._free and self._held[whose] < self._each and whose not in self._lines:
            self._grant(whose)
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(whose, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._leave(whose, place)
            else:  # it was granted meanwhile
                self.release(whose)
            raise

    def release(self, whose: str) -> None:
        """Give a place back."""
        self._free += 1
        self._held[whose] -= 1
        if not self._held[whose]:
            del self._held[whose]
        while self._free:
            found = next((one for one in self._lines if self._held[one] < self._each), None)
            if found is None:
                return
            line = self._lines.pop(found)
            place = line.popleft()
            if line:
                self._lines[found] = line  # behind all others
            if not place.cancelled():
                self._grant(found)
                place.set_result(None)

    @asynccontextmanager
    async def turn(self, whose: str) -> AsyncIterator[None]:
        """Have a place in the block."""
        await self.take(whose)
        try:
            yield
        finally:
            self.release(whose)

    def _grant(self, whose: str) -> None:
        self._free -= 1
        self._held[whose] += 1

    def _leave(self, whose: str, place: asyncio.Future[None]) -> None:
        line = self._lines.get(whose, deque())
        if place in line:
            line.remove(place)
            if not line:
                del self._lines[whose]
