"""The world: actors that take turns in one thread, and a clock that runs only when nobody has anything to do.

Every actor is a greenlet. Whoever waits, for the store's answer or for time to pass, hands over to whoever is due
first; what is due when is drawn from the seed. So the same seed gives the same order of everything.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from blake3 import blake3
from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

_BEGINNING = datetime(2026, 1, 2, tzinfo=UTC)


class Violation(Exception):
    """Something that must always be true is not."""


class Crash(BaseException):
    """An actor's process dies here: nothing of it is ever heard again."""


class World:
    """Time, chance, and whose turn it is.

    Attributes:
        now: seconds since the beginning.
        rng: decides everything.
        operations: store operations so far.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.operations = 0
        self.over = False
        self._hub = getcurrent()
        self._due: list[tuple[float, int, greenlet | Callable[[], None]]] = []
        self._turns = 0
        self._trace = blake3()
        self._violation: Violation | None = None
        self._actors: list[greenlet] = []
        self._waiting: dict[greenlet, Callable[[], bool]] = {}
        self.tail: list[str] = []

    def spawn(self, life: Callable[[], None]) -> None:
        """Let an actor live from now on."""
        actor = greenlet(life, parent=self._hub)
        self._actors.append(actor)
        self._push(self.now, actor)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something after a while, whoever asked for it is alive then or not."""
        self._push(self.now + seconds, act)

    def pause(self, seconds: float) -> None:
        """Let time pass, and others act meanwhile."""
        if self.over:
            raise Crash
        due = self.now + seconds
        if self._due and self._due[0][0] <= due:
            self._push(due, getcurrent())
            self._hub.switch()
            if self.over:
                raise Crash
        else:
            self.now = due

    def wait(self, until: Callable[[], bool], seconds: float | None = None) -> bool:
        """Let others act until something is so, or time is over, and tell whether it is. Who makes it so: `stir`."""
        if self.over:
            raise Crash
        if until():
            return True
        actor = getcurrent()
        self._waiting[actor] = until
        if seconds is not None:
            self.later(seconds, lambda: self._wake(actor, until))
        try:
            self._hub.switch()
        finally:
            self._waiting.pop(actor, None)
        if self.over:
            raise Crash
        return until()

    def stir(self) -> None:
        """Let those go on who have waited for what is so now."""
        for actor in [actor for actor, until in self._waiting.items() if until()]:
            del self._waiting[actor]
            self._push(self.now, actor)

    def _wake(self, actor: greenlet, until: Callable[[], bool]) -> None:
        """Let somebody go on whose time is over, unless that wait has ended."""
        if self._waiting.get(actor) is until:
            actor.switch()

    def run(self, operations: float = math.inf) -> None:
        """Let everybody act until so many store operations were made in all, or nobody has anything to do.

        Raises:
            Violation: something that must always be true is not.
        """
        while self._due and self.operations < operations:
            self.now, _, whose = heapq.heappop(self._due)
            if isinstance(whose, greenlet):
                whose.switch()
            else:
                whose()
            if self._violation is not None:
                raise self._violation

    def end_all(self) -> None:
        """Kill all actors. What is on its way to the store stays so."""
        self.over = True
        for actor in self._actors:
            while actor:
                with suppress(Crash):
                    actor.throw(Crash)
        self._actors.clear()
        self._due = [due for due in self._due if not isinstance(due[2], greenlet)]
        heapq.heapify(self._due)
        self.over = False

    def note(self, what: str) -> None:
        """Take something that happened into the trace."""
        line = f"{self.now:.6f} {what}"
        self._trace.update(line.encode())
        self.tail.append(line)
        if len(self.tail) > 400:
            del self.tail[:200]

    @property
    def trace(self) -> str:
        """The hash of all that happened."""
        return self._trace.hexdigest()

    def fail(self, violation: str) -> NoReturn:
        """End the run: an invariant is broken. What the caller holds is never resumed."""
        found = Violation(f"after {self.operations} store operations, at {self.now:.3f} s: {violation}")
        if getcurrent() is not self._hub:
            self._violation = self._violation or found
            self._hub.switch()
            raise Crash
        raise found

    def moment(self, skew: float = 0.0) -> datetime:
        """Return the time of day, by a clock that is ``skew`` seconds fast."""
        return _BEGINNING + timedelta(seconds=self.now + skew)

    def _push(self, due: float, whose: greenlet | Callable[[], None]) -> None:
        self._turns += 1
        heapq.heappush(self._due, (due, self._turns, whose))
