"""Mirrors of many runs of a root: which there are, and one after the other, or some at a time, brought up to date."""

from __future__ import annotations

import fnmatch
import logging
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
"""Runs that are followed at a time: some of them may be copying for hours."""
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
        self._listed_at: float | None = None

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
        self._look_for_runs()
        yield from self._each(Mirror.catch_up, [*self._mirrors.values()])
        self._refuse_none()

    def follow(self, stop: threading.Event, poll_s: float) -> Iterator[Outcome]:
        """Go on as records come, until ``stop`` is set; yield each look that found some, or failed for good.

        A store that fails is asked again. A run that has moved, or whose log is damaged or forked, is left
        alone from then on. One that takes long, as for a large keyframe, keeps no other one waiting.

        Raises:
            NotFound: no run matches.
            AccessDenied, StoreUnavailable: the source can't be listed, not even once.
            PulseError: there is no run left that can be copied: the first error.
        """
        first: PulseError | None = None
        self._look_for_runs()
        with ThreadPoolExecutor(_FOLLOWED_AT_ONCE, "pulse-mirror-run") as pool:
            under_way: dict[str, Future[Outcome]] = {}
            while not stop.is_set():
                try:
                    self._look_for_runs()
                except StoreUnavailable as error:
                    _logger.warning("%s; it is tried again", error)
                left = [mirror for run, mirror in self._mirrors.items() if run not in self._ended]
                for mirror in left:
                    if mirror.run not in under_way:
                        under_way[mirror.run] = pool.submit(_outcome, self._step, mirror)
                wait(under_way.values(), max(poll_s, _LEAST_S))
                done = [run for run, future in under_way.items() if future.done()]
                for outcome in self._told(under_way.pop(run).result() for run in done):
                    if isinstance(outcome.error, StoreUnavailable):
                        _logger.warning("run %s: %s; it is tried again", outcome.run, outcome.error)
                    elif outcome.error is not None:
                        first = first or outcome.error
                        self._ended.add(outcome.run)
                        yield outcome
                    elif outcome.copied is not None and outcome.copied.records:
                        yield outcome
                if first is not None and self._ended >= self._mirrors.keys():
                    raise first
                if len(left) == 1 and not under_way:
                    self._wait(left[0], poll_s, stop)
                elif not under_way:
                    stop.wait(poll_s)

    def _wait(self, mirror: Mirror, poll_s: float, stop: threading.Event) -> None:
        try:
            mirror.wait(poll_s, stop.wait)
        except StoreUnavailable:
            stop.wait(poll_s)

    def _step(self, mirror: Mirror) -> Copied:
        now = self._monotonic()
        tidy = now - self._tidied.get(mirror.run, -_TIDY_S) >= _TIDY_S
        copied = mirror.step(tidy=tidy)
        if tidy:
            self._tidied[mirror.run] = now
        if (home := mirror.left) is not None:
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
                self._mirrors.pop(found.run).close()  # its first push may be under way: it is found again
            else:
                yield found

    def _look_for_runs(self) -> None:
        """Make a mirror of each run that there is and whose name matches, if it is time to look."""
        now = self._monotonic()
        if self._listed_at is not None and now - self._listed_at < _RUNS_S:
            return
        self._listed_at = now
        for run in matching_runs(self._retrying(self._source), self._runs):
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


def _outcome(work: Callable[[Mirror], Copied], mirror: Mirror) -> Outcome:
    try:
        return Outcome(mirror.run, work(mirror))
    except PulseError as error:
        return Outcome(mirror.run, None, error)
