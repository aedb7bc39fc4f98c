"""The feed of one log: follows it, and wakes those who wait for news.

All of it runs in the event loop, but for `LogFeed.look`; only the store is asked in threads. While somebody is
interested, the log is looked at every so often, however many wait. Truth stays in the bucket: a feed that is lost costs
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from starlette.types import Receive

from pulse_registry.errors import PulseError, StoreUnavailable
from pulse_server.scheduling.looks import Looks
from pulse_server.scheduling.threads import calling, in_thread
from pulse_server.scheduling.turns import CALLER, Turns
from pulse_server.scheduling.waiters import Waiters
from pulse_server.transport.answers import Rendered

LOOK_TIMEOUT_S: Final = 10.0
_YOUNG_S: Final = 1.0
_SLOWEST_POLL_S: Final = 2.0
_LONGEST_REST_S: Final = 20.0
_OF_QUIET: Final = 1 / 32
"""Of the time since the last news: how late the next ones may be known."""
_SLOWER: Final = 3.0
_SELDOM_S: Final = 0.5
"""So much longer, and so long at most, is the pause of a run that somebody waits for when nothing comes: what is known
of it stays younger than `_YOUNG_S`, also where looks are late by `looks.LATE_S`."""

logger = logging.getLogger(__name__)


class State(Protocol):
    """What a log says up to a record; it never changes."""

    @property
    def seq(self) -> int:
        """Number of the newest record, -1 before the first one."""


class Appended(Protocol):
    """A record."""

    @property
    def seq(self) -> int:
        """Its number."""


S = TypeVar("S", bound=State)
S_co = TypeVar("S_co", bound=State, covariant=True)
R = TypeVar("R", bound=Appended)
R_co = TypeVar("R_co", bound=Appended, covariant=True)


class Reads(Protocol[S_co]):
    """Reads a log: see `LogReader`."""

    @property
    def run(self) -> str:
        """Name of the run."""

    @property
    def state(self) -> S_co:
        """The state as last seen."""

    def refresh(self) -> S_co:
        """Read what is new."""


class Admits(Protocol[R_co]):
    """Appends to a log, for others: see `AppendGuard`."""

    def admit(self, sealed: bytes) -> R_co:
        """Append a sealed record of a writer."""

    def admit_copied(self, sealed: bytes, seq: int) -> R_co:
        """Append a sealed record that a mirror brings, at its number."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a feed follows its log: a look ``poll_s`` after the last one, until nobody has asked for ``idle_s``.

    The longer no news has come, the longer is the pause, within bounds: of a run with a version a minute they may be
    known a bit later than of one with a version a second. While nobody waits and nobody asks, each pause is twice as
    long as the one before: the feed rests.
    """

    poll_s: float
    idle_s: float

    def pause_s(self, quiet_s: float) -> float:
        """Return how long to wait with the next look where the last news came so many seconds ago."""
        longest_s = max(self.poll_s, min(_SLOWER * self.poll_s, _SELDOM_S))
        return min(max(self.poll_s, quiet_s * _OF_QUIET), longest_s)


class LogFeed(Generic[S, R]):
    """What one process knows of one log.

    Attributes:
        run: the run's name.
        state: the newest state known; empty before the first look.
        cache: a few answers made of this state, by what was asked; emptied when it changes.
        reading: pages of the log that are being read, by what was asked and by whom.
        users: how many rely on this very object; it is not dropped meanwhile.
        followed: whether the log is being looked at, again and again.
        resting: whether looks have become rare, as nobody asked: look before you rely on the state.
        on_idle: called when nobody has asked for so long that the feed stops following.
    """

    def __init__(
        self,
        reader: Reads[S],
        append_guard: Admits[R],
        empty: S,
        pool: Executor,
        pace: Pace,
        *,
        looks: Looks,
        turns: Turns | None = None,
        defect: Callable[[Exception], None] = lambda error: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to follow; nothing is asked of the store yet.

        Args:
            reader: reads the log.
            append_guard: appends to it, for others.
            empty: the state before the first record.
            pool: the threads that ask the store for whoever asks.
            pace: how often to look.
            looks: makes the looks that nobody asked for.
            turns: places in ``pool``: whoever asks for looks at many runs leaves some to others.
            defect: told of what is none of our errors: it ends a look, and never the following. Thread-safe.
            clock: monotonic time in seconds.
        """
        self.run = reader.run
        self.state = empty
        self.cache: dict[object, object] = {}
        self.reading: dict[object, asyncio.Task[Rendered]] = {}
        self.users = 0
        self.on_idle: Callable[[Any], None] = lambda feed: None
        self._reader, self._append_guard = reader, append_guard
        self._pool, self._pace, self._looks, self._clock = pool, pace, looks, clock
        self._turns = Turns(1, 1) if turns is None else turns
        self._defect = defect
        self._looked: float | None = None
        self._touched = self._news_at = clock()
        self._asked_by: dict[str, asyncio.Task[PulseError | None]] = {}
        self._looking: asyncio.Task[PulseError | None] | None = None
        self._queued: asyncio.Task[PulseError | None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.followed = self.resting = False
        self._pause_s, self._failing, self._asked = pace.poll_s, False, False
        self._begun: dict[str, float] = {}  # when looks that are under way did: one that was due, one asked for
        self._waiters = Waiters()
        self._appending = asyncio.Lock()
        self._appends: set[asyncio.Task[R]] = set()
        self._stopped = False

    @property
    def opened(self) -> bool:
        """Whether the log was ever read."""
        return self._looked is not None

    @property
    def exists(self) -> bool:
        """Whether the run has a record, as far as is known."""
        return self.state.seq >= 0

    @property
    def age_s(self) -> float:
        """Seconds since the log was last looked at with success."""
        return 0.0 if self._looked is None else max(0.0, self._clock() - self._looked)

    @property
    def reliable(self) -> bool:
        """Whether to answer from memory: it is young, or nobody could know better soon, the store being slow."""
        if not self.followed or self.resting:
            return False
        now = self._clock()
        slow = any(now - began > _YOUNG_S for began in [*self._begun.values()])
        return self.age_s <= max(_YOUNG_S, self._pace.poll_s) or slow or self._failing

    @property
    def waiting(self) -> int:
        """How many wait for news of the log alone."""
        return len(self._waiters)

    @property
    def in_use(self) -> bool:
        """Whether somebody relies on this very object."""
        return bool(self.users or self._waiters or self._appends)

    def follow(self) -> None:
        """Look at the log again and again, until nobody has called this for a while; a feed that rests does no more."""
        self._touched, self._asked = self._clock(), True
        if self._stopped or (self.followed and not self.resting):
            return
        self._loop = asyncio.get_running_loop()
        self.followed, self.resting, self._pause_s = True, False, self._pace.poll_s
        self._looks.after(self._pause_s, self)

    async def refresh(self) -> None:
        """Look at the log now. Callers that come while a look is under way share the next one.

        Raises:
            StoreUnavailable: the store failed, or has not answered in time.
            CorruptObject, UnsupportedFormat: the log can't be read on; the state is that before the bad record.
        """
        caller = CALLER.get()
        asked = self._asked_by.get(caller)
        if asked is None:
            asked = asyncio.get_running_loop().create_task(self._ask(caller), name=f"ask for {self.run}")
            self._asked_by[caller] = asked
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                error = await asyncio.shield(asked)
        except TimeoutError:
            raise StoreUnavailable(f"run {self.run!r}: the store has not answered for {LOOK_TIMEOUT_S:g} s") from None
        if error is not None:
            raise type(error)(str(error)) from error

    async def _ask(self, caller: str) -> PulseError | None:
        """Wait for a caller's turn, and then for a look, which all who have theirs meanwhile share."""
        async with self._turns.turn(caller):
            del self._asked_by[caller]
            if self._queued is None:
                look = self._look_next()
                self._queued = asyncio.get_running_loop().create_task(look, name=f"look at {self.run}")
            return await asyncio.shield(self._queued)

    async def wait(self, ready: Callable[[S], bool], timeout_s: float, receive: Receive | None = None) -> bool:
        """Wait until the state is as asked for.

        Args:
            ready: tells whether it is.
            timeout_s: how long to wait.
            receive: the request's channel: who has gone waits no longer.

        Returns:
            Whether it is; False when the time is over, the service stops, or the client has gone.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        gone = None if receive is None else loop.create_task(_until_gone(receive))
        try:
            while not ready(self.state):
                left = deadline - loop.time()
                if left <= 0 or self._stopped or (gone is not None and gone.done()):
                    return False
                self._rouse()
                await self._waiters.park(left, gone)
            return True
        finally:
            if gone is not None:
                gone.cancel()

    async def append(self, sealed: bytes, *, copied: int | None = None) -> R:
        """Append a record for a writer, and tell those who wait; goes on to its end even if the caller is cancelled.

        Args:
            sealed: the record.
            copied: its number, where a mirror brings it to a copy.

        Raises:
            As ``admit``, or ``admit_copied``, of the append guard.
        """
        guard = self._append_guard
        admit = guard.admit if copied is None else partial(guard.admit_copied, seq=copied)
        task = asyncio.get_running_loop().create_task(self._append(admit, sealed), name=f"append to {self.run}")
        self._appends.add(task)
        task.add_done_callback(self._appended)
        return await asyncio.shield(task)

    def release(self) -> None:
        """Send away all who wait, now and from here on."""
        self._stopped = True
        self._wake()

    def drop(self) -> None:
        """Follow no more; for a feed that nobody uses."""
        self.followed = self.resting = self._failing = False
        self._looks.forget(self)

    async def stop(self) -> None:
        """End: appends that were accepted are finished, and nothing is left running."""
        self.release()
        self.drop()
        if self._appends:
            await asyncio.wait(self._appends)
        tasks = {task for task in (self._queued, self._looking) if task is not None}
        tasks |= {*self._asked_by.values()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _appended(self, task: asyncio.Task[R]) -> None:
        self._appends.discard(task)
        if not task.cancelled():
            task.exception()  # looked at here, too, since the caller may have gone

    async def _append(self, admit: Callable[[bytes], R], sealed: bytes) -> R:
        async with self._appending, self._turns.turn(CALLER.get()):  # those that wait for their turn take no thread
            began = self._clock()
            record = await in_thread(self._pool, admit, sealed)
        self._note(began)
        self._publish(self._reader.state)
        self._put_off()
        return record

    def look(self) -> float | None:
        """Look at the log, in a thread, because it is time; see `Followed.look`.

        Where nothing is new, and somebody waits or has asked, all is said; else the event loop goes on from here.
        """
        loop, asked, self._asked = self._loop, self._asked, False
        if loop is None or not self.followed:
            return None
        error = None
        began = self._begun["due"] = self._clock()
        try:
            state = calling(self._reader.refresh)
            if state.seq <= self.state.seq and not self._failing and (asked or self._wanted):
                self._note(began)
                return self._soon_s
        except PulseError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - a task's outermost edge: the next look goes on
            self._defect(failure)
            error = self._broken(failure)
        finally:
            self._begun.pop("due", None)
        with suppress(RuntimeError):  # the event loop has ended, and nobody follows any more
            loop.call_soon_threadsafe(self._go_on, began, asked, error)
        return None

    def _go_on(self, began: float, asked: bool, error: PulseError | None) -> None:
        """Take over what a look has found, and say when the next one is due."""
        if not self.followed:
            return
        wanted, self._asked = self._wanted or asked or self._asked, False  # also by those who are woken now
        if error is None:
            self._note(began)
        if self.opened:
            self._publish(self._reader.state)  # after an error, what was read before it; asks nothing
        shortest_s = self._soon_s
        if error is not None:
            if not self._failing:
                logger.warning("run %s: its log can't be read, and answers grow stale: %s", self.run, error)
            self._failing, self.resting = True, False
            self._pause_s = min(2 * self._pause_s, max(_SLOWEST_POLL_S, shortest_s))
        else:
            if self._failing:
                logger.info("run %s: its log can be read again", self.run)
                self._failing, self._pause_s = False, shortest_s
            self.resting = not wanted
            self._pause_s = min(2 * self._pause_s, max(_LONGEST_REST_S, shortest_s)) if self.resting else shortest_s
        if self._wanted or self._clock() - self._touched < self._pace.idle_s:
            self._looks.after(self._pause_s, self)
        else:
            self.drop()
            self.on_idle(self)

    def _rouse(self) -> None:
        """Rest no more: look at once."""
        if self.resting:
            self.resting, self._pause_s = False, self._pace.poll_s
            self._looks.after(0.0, self)

    def _note(self, began: float) -> None:
        """Note that the log was read, by a look that began then."""
        self._looked = began if self._looked is None else max(began, self._looked)

    def _put_off(self) -> None:
        """Look a pause after a look that somebody asked for, or an append: it has told what there was."""
        if self.followed and not (self.resting or self._failing):
            self._looks.after(self._soon_s, self)

    @property
    def _soon_s(self) -> float:
        """How long to wait with the next look at a run that somebody waits for."""
        return self._pace.pause_s(self._clock() - self._news_at)

    @property
    def _wanted(self) -> bool:
        return bool(self._waiters or self.users)

    async def _look_next(self) -> PulseError | None:
        if self._looking is not None:
            await asyncio.wait((self._looking,))
        self._looking, self._queued = self._queued, None
        try:
            return await self._look()
        finally:
            self._looking = None

    async def _look(self) -> PulseError | None:
        began = self._begun["asked"] = self._clock()
        try:
            self._publish(await in_thread(self._pool, self._reader.refresh))
        except PulseError as error:
            if self.opened:
                self._publish(self._reader.state)  # what was read before the error; asks nothing
            return error
        except Exception as error:  # noqa: BLE001 - a task's outermost edge: those who wait, and the next look, go on
            self._defect(error)
            return self._broken(error)
        finally:
            self._begun.pop("asked", None)
        self._note(began)
        self._put_off()
        return None

    def _broken(self, error: Exception) -> PulseError:
        return PulseError(f"run {self.run!r}: its log can't be read: {type(error).__name__}, a defect: report it")

    def _publish(self, state: S) -> None:
        if state.seq <= self.state.seq:
            return
        self.state, self._news_at = state, self._clock()
        self.cache.clear()
        self._renew()
        self._wake()

    def _renew(self) -> None:
        """Make anew what answers need of a state that has just come."""

    def _wake(self) -> None:
        self._waiters.wake()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
