"""Looks at what is followed, again and again: each when it is due, in threads that mostly wait for the store.

A look that finds nothing new costs the event loop nothing: the thread that made it says when the next one is due.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

LOOKERS: Final = 64
"""Looks under way at a time: some 2,000 a second in a store that answers in 30 ms."""
SHARE, LATE_SHARE, LATE_S = 0.2, 0.5, 0.5
"""Of a core that looks may take; and when they are late by more than so many seconds. The rest is for answers."""
TICK_S: Final = 0.02
"""The shortest wait for what is due: looks that come close together are begun together, which costs less. As many as
have their share of a core in that time: of more at once, each would compete with the event loop for the interpreter."""
_USUAL: Final = 16
"""Looks whose mean is what they usually take."""


class Followed(Protocol):
    """What is looked at."""

    def look(self) -> float | None:
        """Look, in a thread; return in how many seconds to look again; None: not before `Looks.after` says so."""


class Budget:
    """Processor time that looks may take, and so when the next one may begin.

    Each is counted when it begins, as what looks usually take: those that are late by now don't begin all at once.

    Attributes:
        free_at: when the next one may begin, on a clock.
    """

    def __init__(self) -> None:
        """Begin with nothing spent."""
        self.free_at = float("-inf")
        self._usual_s = 0.001

    def begin(self, now: float, late_s: float) -> float:
        """Count a look that begins, late by so much; return what it was counted as, for `end`."""
        share = LATE_SHARE if late_s > LATE_S else SHARE
        self.free_at = max(self.free_at, now - TICK_S) + self._usual_s / share
        return self._usual_s

    def end(self, counted_s: float, spent_s: float) -> None:
        """Count what a look took that has ended."""
        self.free_at += (spent_s - counted_s) / SHARE
        self._usual_s += (spent_s - self._usual_s) / _USUAL


class Looks:
    """A queue of looks by when they are due, and the threads that make them. Thread-safe.

    Nothing is looked at by two threads at a time. A thread is begun when a look is due and all others are at work.
    """

    def __init__(
        self,
        threads: int = LOOKERS,
        *,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        """Begin with no threads.

        Args:
            threads: how many there are at most.
            clock: monotonic time in seconds.
            spent: processor time of the calling thread, in seconds.
        """
        self._most, self._clock, self._spent = threads, clock, spent
        self._lock = threading.Lock()
        self._lead, self._rest = threading.Condition(self._lock), threading.Condition(self._lock)
        self._queue: list[tuple[float, int, Followed]] = []
        self._numbers = itertools.count()
        self._due: dict[Followed, float] = {}
        self._under_way: dict[Followed, float | None] = {}  # with when it is due next, if somebody has said so
        self._threads: list[threading.Thread] = []
        self._leading, self._idle, self._closed = False, 0, False
        self._budget = Budget()

    def after(self, seconds: float, one: Followed) -> None:
        """Look in so many seconds, whatever was said before."""
        due = self._clock() + seconds
        with self._lock:
            if one in self._under_way:
                self._under_way[one] = due
            else:
                self._enter(due, one)
                if not self._leading:
                    self._call_another()

    def forget(self, one: Followed) -> None:
        """Look no more; a look that is under way goes on to its end."""
        with self._lock:
            self._due.pop(one, None)
            self._under_way.pop(one, None)

    def close(self) -> None:
        """End: looks that are under way are waited for."""
        with self._lock:
            self._closed = True
            self._lead.notify_all()
            self._rest.notify_all()
            threads = [*self._threads]
        for thread in threads:
            thread.join()

    def _enter(self, due: float, one: Followed) -> None:
        self._due[one] = due
        heapq.heappush(self._queue, (due, next(self._numbers), one))
        if self._queue[0][2] is one:
            self._lead.notify()

    def _call_another(self) -> None:
        """See to it that some thread waits for the next look, if there is one left."""
        if self._idle:
            self._rest.notify()
        elif len(self._threads) < self._most and not self._closed:
            thread = threading.Thread(target=self._work, name=f"follow-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (begun := self._next()) is not None:
            one, counted_s = begun
            before = self._spent()
            again = one.look()
            self._done(one, again, counted_s, self._spent() - before)

    def _next(self) -> tuple[Followed, float] | None:
        """Wait until a look is due, and return at what, and what it was counted as; None at the end.

        One thread waits for the time to come; the others wait until they are called.
        """
        with self._lock:
            while not self._closed:
                if self._leading:
                    self._idle += 1
                    self._rest.wait()
                    self._idle -= 1
                    continue
                pause = self._pause()
                if pause is None or pause > 0:
                    self._leading = True
                    self._lead.wait(None if pause is None else max(pause, TICK_S))
                    self._leading = False
                    continue
                due, _, one = heapq.heappop(self._queue)
                del self._due[one]
                self._under_way[one] = None
                now = self._clock()
                counted_s = self._budget.begin(now, now - due)
                if self._queue:
                    self._call_another()
                return one, counted_s
            return None

    def _pause(self) -> float | None:
        """Return how long it is until the next look, None if there is none."""
        while self._queue and self._due.get(self._queue[0][2]) != self._queue[0][0]:
            heapq.heappop(self._queue)  # it was put off, or forgotten
        return max(self._queue[0][0], self._budget.free_at) - self._clock() if self._queue else None

    def _done(self, one: Followed, again: float | None, counted_s: float, spent_s: float) -> None:
        with self._lock:
            now = self._clock()
            self._budget.end(counted_s, spent_s)
            known = one in self._under_way
            due = self._under_way.pop(one, None)
            if due is None and again is not None:
                due = now + again
            if known and due is not None:
                self._enter(due, one)
