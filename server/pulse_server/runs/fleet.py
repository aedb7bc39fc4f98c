"""Fleet: follows the runs of a root while streams tell of them, and makes their lines.

The logs of the runs are followed, at most a thousand; a line is made once for all streams when a run or its workers
have changed. Changes have an allowance in bytes: what there is no room for waits in line, and is told as it is then.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import Final

from pulse_registry.errors import NotFound, PulseError
from pulse_schemas.api import RunLine
from pulse_server.auth.access import Principal
from pulse_server.runs.bodies import run_body, unread_body
from pulse_server.runs.feed import RunFeed
from pulse_server.runs.feeds import Feeds
from pulse_server.runs.homes import Homes
from pulse_server.runs.layout_sizes import LayoutSizes
from pulse_server.runs.run_lines import Place, RunLines, View
from pulse_server.runs.summary import run_line
from pulse_server.runs.workers import Workers
from pulse_server.scheduling.allowance import Allowance
from pulse_server.scheduling.background import Background
from pulse_server.scheduling.turns import begin_for_all
from pulse_server.scheduling.waiters import Waiters

MOST_RUNS: Final = 1_000
"""That a stream tells of, and that are followed for all streams."""
_BURST: Final = 64 << 10
_PER_S: Final = 32 << 10
"""Bytes of changes that are told at once, and a second from then on."""
_TICK_S: Final = 0.2
_CHOOSE_S: Final = 3.0
"""How often runs that are new are looked for."""
_SAME_RECORD_S: Final = 1.0
"""Between two lines of a run that has no new record."""
_LINGER_S: Final = 30.0
"""From the last stream's end until the runs are followed no more."""
_STALE_S: Final = 10.0
_AGAIN_S: Final = 15.0
"""Until a log that could not be read is tried again."""
_OPENERS: Final = 16
_AT_ONCE: Final = 32
"""Lines that are made in one go."""
_LINE_BYTES: Final = 400
"""Of a line, about, before it is made."""
_NEW: Final = -2
FLEET: Final = "tell of runs"


@dataclass(slots=True)
class _Run:
    """A run that is followed: its feed, and of which record, when, and how its line was made."""

    feed: RunFeed
    seq: int = _NEW
    told_at: float = float("-inf")
    stale: bool = False
    away: bool = False


@dataclass(slots=True)
class Reader:
    """Reads what streams tell, by the token ``who`` as it is now."""

    who: Principal


class Fleet:
    """The runs of a root as streams tell of them. Not thread-safe: one event loop asks."""

    def __init__(
        self,
        feeds: Feeds[RunFeed],
        workers: Workers,
        sizes: LayoutSizes,
        homes: Homes,
        names: Callable[[], Awaitable[Sequence[str]]],
        background: Background,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with nothing followed.

        Args:
            feeds: of the runs that are asked for.
            workers: of these.
            sizes: of layouts.
            homes: of runs that have moved.
            names: returns the names of all runs, sorted.
            background: hears of what fails.
            clock: monotonic time in seconds.
        """
        self._feeds, self._workers, self._sizes, self._homes, self._list = feeds, workers, sizes, homes, names
        self._background, self._clock = background, clock
        self._names: Sequence[str] = ()
        self._views: dict[tuple[str, ...], View] = {}  # of these names, by a token's patterns
        self._lines, self._allowance = RunLines(), Allowance(_BURST, _PER_S, clock)
        self._runs: dict[str, _Run] = {}
        self._due: OrderedDict[str, None] = OrderedDict()
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._unreadable: dict[str, float] = {}
        self._bare: set[str] = set()  # folders that were found to hold no log
        self._openers = asyncio.Semaphore(_OPENERS)
        self._readers: list[Reader] = []
        self._left_at = 0.0
        self._waiters, self._stopped = Waiters(), False
        self._work: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Return how many runs are followed."""
        return len(self._runs)

    @property
    def readers(self) -> int:
        """How many streams are read."""
        return len(self._readers)

    @contextmanager
    def reading(self, who: Principal) -> Iterator[Reader]:
        """Follow the runs that somebody may read, while in the block and for a while after it."""
        reader = Reader(who)
        self._readers.append(reader)
        if self._work is None or self._work.done():
            self._work = begin_for_all(self._follow(), FLEET)
        try:
            yield reader
        finally:
            self._readers = [other for other in self._readers if other is not reader]
            self._left_at = self._clock()

    async def refresh(self) -> None:
        """Look which runs there are, if that was not done of late.

        Raises:
            StoreUnavailable: the store failed.
        """
        names = await self._list()
        if names != self._names:
            self._names, self._views = names, {}

    def view(self, who: Principal) -> View:
        """Return the runs that streams of somebody tell of: the first by name that they may read."""
        view = self._views.get(who.runs)
        if view is None:
            runs = (name for name in self._names if name not in self._bare and who.may("read", name))
            first = [*islice(runs, MOST_RUNS + 1)]
            view = self._views[who.runs] = View.of(who.runs, first[:MOST_RUNS], len(first) > MOST_RUNS)
        return view

    def read(self, place: Place, who: Principal) -> tuple[Place, bytes]:
        """Return the event that follows a place in somebody's stream, and the place after it; see `RunLines.read`."""
        return self._lines.read(place, self.view(who))

    async def wait(self, seconds: float) -> None:
        """Wait until there is something new, or the time is over."""
        if not self._stopped:
            await self._waiters.park(seconds)

    def release(self) -> None:
        """Send away all who wait, now and from here on."""
        self._stopped = True
        self._waiters.wake()

    async def stop(self) -> None:
        """End: follow nothing more."""
        self.release()
        tasks = [task for task in (self._work, *self._opening.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _follow(self) -> None:
        """Follow the runs until nobody has read for a while."""
        chosen_at = float("-inf")
        try:
            while self._readers or self._clock() - self._left_at < _LINGER_S:
                with self._background.surviving(FLEET):
                    if self._clock() - chosen_at >= _CHOOSE_S:
                        chosen_at = self._clock()
                        await self._choose()
                    if self._readers:
                        await self._tell()
                await asyncio.sleep(_TICK_S)
        finally:
            for run in [*self._runs]:
                self._drop(run)
            self._lines.clear()
            self._unreadable.clear()
            self._bare.clear()
            self._views = {}

    async def _choose(self) -> None:
        """Begin to follow runs that are new, and end with those that are there no more."""
        with suppress(PulseError):  # what is known stays
            await self.refresh()
        there = frozenset(self._names)
        self._bare &= there
        if gone := [name for name in (*self._runs, *self._unreadable) if name not in there]:
            for name in gone:
                self._drop(name)
            self._waiters.wake()
        views = {reader.who.runs: self.view(reader.who) for reader in self._readers}
        bare = (name for name in sorted(self._bare) if any(reader.who.may("read", name) for reader in self._readers))
        for name in chain(chain.from_iterable(zip_longest(*(sorted(view.runs) for view in views.values()))), bare):
            if len(self._runs) + len(self._opening) >= MOST_RUNS:
                break
            if name is None or name in self._runs or name in self._opening:
                continue
            if self._clock() - self._unreadable.get(name, float("-inf")) >= _AGAIN_S:
                self._opening[name] = begin_for_all(self._open(name), f"open {name}")
        for name, run in self._runs.items():
            if run.away or run.stale != _is_stale(run.feed):  # what proves that it is back comes after the record
                self._due.setdefault(name)

    async def _open(self, name: str) -> None:
        """Begin to follow a run, if it is one."""
        try:
            async with self._openers:
                with self._background.surviving(FLEET, but=PulseError):
                    feed = await self._feeds.open(name)
                    feed.users += 1
                    feed.on_news = self._due.setdefault
                    self._runs[name] = _Run(feed)
                    self._unreadable.pop(name, None)
                    self._is_bare(name, False)
                    self._due.setdefault(name)
        except NotFound:  # a folder that is no run, or not yet
            self._is_bare(name, True)
        except PulseError:
            self._unreadable[name] = self._clock()
            self._is_bare(name, False)
            self._put(name, run_line(unread_body(name), stale=True))
        finally:
            self._opening.pop(name, None)

    def _is_bare(self, name: str, bare: bool) -> None:
        """Count a folder among the runs, or not."""
        if bare == (name in self._bare):
            return
        (self._bare.add if bare else self._bare.discard)(name)
        self._views = {}
        self._waiters.wake()

    def _drop(self, name: str) -> None:
        """Follow a run no more, and tell nothing of it."""
        run = self._runs.pop(name, None)
        if run is not None:
            run.feed.users -= 1
            run.feed.on_news = _unheard
        self._unreadable.pop(name, None)
        self._due.pop(name, None)
        self._lines.drop(name)

    async def _tell(self) -> None:
        """Make the lines that are due, as far as there is an allowance for them."""
        while names := [*islice(self._ready(), _AT_ONCE)]:
            for name in names:
                del self._due[name]
            runs = [self._runs[name] for name in names]
            states = [run.feed.state for run in runs]
            full = await asyncio.gather(*map(self._sizes.newest, states))
            homes = await asyncio.gather(*map(self._homes.elsewhere, states))
            summaries = await self._workers.summaries([run.feed for run in runs])
            bodies = map(run_body, states, full, summaries)
            for name, run, state, body, home in zip(names, runs, states, bodies, homes, strict=True):
                if self._runs.get(name) is run:
                    is_first, run.seq, run.told_at = run.seq == _NEW, state.seq, self._clock()
                    run.stale, run.away = _is_stale(run.feed), home is not None
                    told = self._put(name, run_line(body, stale=run.stale, home=home))
                    self._allowance.spend(0 if is_first else told)

    def _ready(self) -> Iterator[str]:
        """Yield the runs whose lines may be made now, those that have waited for longest first."""
        now, room = self._clock(), self._allowance.left
        for name in self._due:
            run = self._runs[name]
            is_news = run.seq != run.feed.state.seq or run.stale != _is_stale(run.feed)
            if run.seq == _NEW or (room > 0 and (is_news or now - run.told_at >= _SAME_RECORD_S)):
                room -= 0 if run.seq == _NEW else _LINE_BYTES
                yield name

    def _put(self, name: str, line: RunLine) -> int:
        """Tell this of a run from now on, and return how many bytes of news it is."""
        text = line.model_dump_json()
        if not self._lines.put(name, text):
            return 0
        self._waiters.wake()
        return len(text)


def _is_stale(feed: RunFeed) -> bool:
    return feed.age_s > _STALE_S


def _unheard(run: str) -> None:
    """Take no notice of a run's news."""
