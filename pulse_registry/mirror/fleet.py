"""Mirrors of many runs of a root: which there are, and one after the other, or some at a time, brought up to date."""

from __future__ import annotations

import fnmatch
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from pulse_registry.errors import Fenced, InvalidArgument, NotFound, PulseError, StoreUnavailable
from pulse_registry.events import Events
from pulse_registry.log.names import RUN_NAME, fold, run_name
from pulse_registry.log.runs import list_runs
from pulse_registry.mirror.lanes import Lanes
from pulse_registry.mirror.mirror import Copied, Mirror
from pulse_registry.process.parallel import parallel_map
from pulse_registry.store import RetryStore, Store

_logger = logging.getLogger(__name__)
_AT_ONCE: Final = 8
"""Runs that are brought up to date at a time, once."""
_FOLLOWED_AT_ONCE: Final = 32
"""Runs that are followed, or tended, at a time: some of them may be copying for hours."""
_LEAST_S: Final = 0.001
_RUNS_S: Final = 30.0
"""How often a root is asked for new runs."""
_TIDY_S: Final = 15.0
"""How often snapshots and hints are copied while records come."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one look at a run: what was copied, or why nothing could be."""

    run: str
    copied: Copied | None
    error: PulseError | None = None


def is_name(runs: str) -> bool:
    """Tell whether a pattern of names is one name: of the folders that others match, some may have no log yet."""
    return RUN_NAME.fullmatch(fold(runs)) is not None


def matching_runs(store: Store, runs: str) -> list[str]:
    """Return the runs of a root whose names match, in order: one that is named need not be there.

    Raises:
        InvalidArgument: it is a service, which lists none, and ``runs`` is no name.
        AccessDenied, StoreUnavailable: the root can't be listed.
    """
    wanted = fold(runs)
    if is_name(runs):
        return [run_name(wanted)]
    if store.gateway() is not None:
        raise InvalidArgument(f"--runs {runs}: a service lists no runs: name one")
    return sorted(fnmatch.filter(list_runs(store), wanted))


class Fleet:
    """Mirrors of the runs of a root whose names match; for one thread."""

    def __init__(
        self,
        source: Store,
        destination: Store,
        runs: str,
        lanes: Lanes,
        *,
        verify: bool = False,
        events: Events | None = None,
        retrying: Callable[[Store], Store] = RetryStore,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            source, destination: roots.
            runs: names, with ``*``, ``?`` and ``[...]`` as in a shell; of a service, which lists none, one name.
            lanes: that all mirrors share.
            verify, events, retrying, monotonic: as `Mirror`.
        """
        self._source, self._destination, self._runs = source, destination, runs
        self._lanes, self._verify, self._events, self._retrying = lanes, verify, events, retrying
        self._monotonic = monotonic
        self._mirrors: dict[str, Mirror] = {}
        self._tidied: dict[str, float] = {}
        self._ended: set[str] = set()
        self._listed_at = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for mirror in self._mirrors.values():
            mirror.close()

    def copy(self) -> Iterator[Outcome]:
        """Bring each run up to date, once; yield what became of each, in the order of names.

        Raises:
            NotFound: no run matches.
            AccessDenied, StoreUnavailable: the source can't be listed.
        """
        self._add(self._list())
        yield from self._each(Mirror.catch_up, [*self._mirrors.values()])
        self._refuse_none()

    def follow(self, stop: threading.Event, poll_s: float) -> Iterator[Outcome]:
        """Go on as records come, until ``stop`` is set; yield each look that found some, or failed for good.

        A look begins so many seconds after the last one did. What versions need not wait for is done beside the looks:
        that there are new runs, and what `Mirror.tend` does.

        A store that fails is asked again. A run that has moved, or whose log is damaged or forked, is left
        alone from then on. One that takes long, as for a large keyframe, keeps no other one waiting.

        Raises:
            NotFound: no run matches.
            AccessDenied, StoreUnavailable: the source can't be listed, not even once.
            PulseError: there is no run left that can be copied: the first error.
        """
        first: PulseError | None = None
        self._add(self._list())
        with (
            ThreadPoolExecutor(_FOLLOWED_AT_ONCE, "pulse-mirror-run") as lookers,
            ThreadPoolExecutor(_FOLLOWED_AT_ONCE, "pulse-mirror-tend") as tenders,
        ):
            looks: dict[str, Future[Outcome]] = {}
            tends: dict[str, Future[Outcome]] = {}
            listing: Future[list[str]] | None = None
            while not stop.is_set():
                now = self._monotonic()
                listing = self._listed(listing)
                if listing is None and now - self._listed_at >= _RUNS_S:
                    listing = tenders.submit(self._list)
                left = [mirror for run, mirror in self._mirrors.items() if run not in self._ended]
                for mirror in left:
                    if mirror.run not in looks:
                        looks[mirror.run] = lookers.submit(_outcome, Mirror.look, mirror)
                    if mirror.run not in tends and (mirror.has_more or (mirror.begun and self._is_due(mirror, now))):
                        tends[mirror.run] = tenders.submit(_outcome, self._tend, mirror)
                wait(looks.values(), max(poll_s, _LEAST_S))
                for outcome in self._told([*_done(looks), *_done(tends)]):
                    if isinstance(outcome.error, StoreUnavailable):
                        _logger.warning("run %s: %s; it is tried again", outcome.run, outcome.error)
                    elif outcome.error is not None and outcome.run not in self._ended:
                        first = first or outcome.error
                        self._ended.add(outcome.run)
                        yield outcome
                    elif outcome.copied is not None and outcome.copied.records:
                        yield outcome
                if first is not None and self._ended >= self._mirrors.keys():
                    raise first
                if not looks:
                    rest = partial(stop.wait, max(0.0, poll_s - (self._monotonic() - now)))
                    self._wait(left, poll_s, rest)

    def _wait(self, left: list[Mirror], poll_s: float, rest: Callable[[], object]) -> None:
        """Wait until the next look is due: a service tells of a record of one run, and nobody of many runs."""
        try:
            if len(left) == 1:
                left[0].wait(poll_s, lambda _: rest())
            else:
                rest()
        except StoreUnavailable:
            rest()

    def _is_due(self, mirror: Mirror, now: float) -> bool:
        return now - self._tidied.get(mirror.run, -math.inf) >= _TIDY_S

    def _tend(self, mirror: Mirror) -> Copied:
        now = self._monotonic()
        tidy = self._is_due(mirror, now)
        had_left = mirror.left is not None  # what is copied now is then the last of its outer rounds
        copied = mirror.tend(tidy=tidy)
        if tidy:
            self._tidied[mirror.run] = now
        if had_left and (home := mirror.left) is not None:
            raise Fenced(
                f"run {mirror.run!r}: record {home.seq} moved it to {home.to}: the copy has all that it had here"
            )
        return copied

    def _each(self, work: Callable[[Mirror], Copied], mirrors: list[Mirror]) -> Iterator[Outcome]:
        with parallel_map(_AT_ONCE, "pulse-mirror-run") as map_:
            yield from self._told(map_(partial(_outcome, work), mirrors))

    def _told(self, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
        """Yield what is to be told of; a folder that has no log is no run yet."""
        for found in outcomes:
            if isinstance(found.error, NotFound) and not is_name(self._runs):
                self._drop(found.run)  # its first push may be under way: it is found again
            else:
                yield found

    def _drop(self, run: str) -> None:
        if (mirror := self._mirrors.pop(run, None)) is not None:
            mirror.close()

    def _list(self) -> list[str]:
        """Return the runs that there are and whose names match."""
        self._listed_at = self._monotonic()
        return matching_runs(self._retrying(self._source), self._runs)

    def _listed(self, listing: Future[list[str]] | None) -> Future[list[str]] | None:
        """Make mirrors of what was listed; return what is still under way."""
        if listing is None or not listing.done():
            return listing
        try:
            self._add(listing.result())
        except StoreUnavailable as error:
            _logger.warning("%s; it is tried again", error)
        return None

    def _add(self, runs: list[str]) -> None:
        """Make a mirror of each run that has none."""
        for run in runs:
            if run not in self._mirrors:
                self._mirrors[run] = Mirror(
                    self._source,
                    self._destination,
                    run,
                    events=self._events,
                    verify=self._verify,
                    lanes=self._lanes,
                    retrying=self._retrying,
                )
        self._refuse_none()

    def _refuse_none(self) -> None:
        if not self._mirrors:
            raise NotFound(f"no run in {self._source.url} is called {self._runs}")


def _done(under_way: dict[str, Future[Outcome]]) -> Iterator[Outcome]:
    """Take out what is over."""
    for run in [run for run, future in under_way.items() if future.done()]:
        yield under_way.pop(run).result()


def _outcome(work: Callable[[Mirror], Copied], mirror: Mirror) -> Outcome:
    try:
        return Outcome(mirror.run, work(mirror))
    except PulseError as error:
        return Outcome(mirror.run, None, error)
