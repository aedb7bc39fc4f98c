"""Worker reports: kept in memory by the replica that heard them, and shared through the bucket.

Each replica writes one object a run, now and then, and reads those of the others of the runs that it follows, so that
all of them list the same workers. Reports that are old count no more, nor do those of a worker that has gone since.
They say nothing of a run's truth: a lost one costs a line on a page.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from heapq import nlargest
from itertools import accumulate, islice, repeat
from math import inf
from operator import itemgetter
from typing import Final

from pydantic import ValidationError

from pulse_registry.errors import CorruptObject, NotFound, PulseError
from pulse_registry.log import Clock, RunState, timestamp
from pulse_registry.store import Store
from pulse_schemas.api import ReportFile, WorkerBody, WorkerList, WorkerNote, WorkerReport, WorkerSummary
from pulse_server.auth.names import join_name, split_name
from pulse_server.runs.listing import Listing
from pulse_server.telemetry.metrics import BEHIND, RunFigures

MAX_WORKERS: Final = 10_000
"""Workers of a run that are listed, and gone ones that are remembered."""
MAX_BYTES: Final = 16 << 20
"""Of a run's reports as a replica shares them, and of those that it keeps of the others."""
_MOST_REPLICAS: Final = 1000
_AVOIDED_BYTES: Final = 1 << 10
"""Of the keys that one worker avoided, which are listed; a dozen of ours fit."""
_QUIET_S: Final = 60.0
"""How often what others wrote is read unasked, of a run of which they had written nothing."""

logger = logging.getLogger(__name__)
Notes = Mapping[str, WorkerNote]
Gone = Mapping[str, str]
"""Workers that have gone, by name, and when."""


@dataclass(frozen=True, slots=True)
class _Others:
    """What the other replicas wrote, and when it was read, by the monotonic clock."""

    read_at: float = float("-inf")
    notes: Notes = field(default_factory=dict)
    gone: Gone = field(default_factory=dict)


_NOTHING: Final = _Others()


class Reports:
    """The workers' reports of all runs, by whole names (`pulse_server.auth.names`). Thread-safe.

    How many of one token it is told of is for the caller to bound; of those of all tokens, `share` forgets what it has
    no room for.
    """

    def __init__(
        self,
        store: Store,
        *,
        replica: str,
        now: Clock,
        share_s: float,
        keep_s: float,
        max_workers: int = MAX_WORKERS,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with no report.

        Args:
            store: holds all runs.
            replica: this process's own name among those over the same bucket.
            now: the time that a report gets.
            share_s: how long what others wrote is taken as new.
            keep_s: how long a report counts.
            max_workers: of one run: how many are listed, and how many gone ones are remembered.
            max_bytes: of one run: what is written for the other replicas, and what is kept of them.
            clock: monotonic time in seconds.
        """
        self._store, self._replica, self._now = store, replica, now
        self._share_s, self._keep_s, self._max, self._max_bytes = share_s, keep_s, max_workers, max_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._own: dict[str, dict[str, WorkerNote]] = {}
        self._gone: dict[str, OrderedDict[str, str]] = {}
        self._others: dict[str, _Others] = {}
        self._dirty: set[str] = set()

    def take(self, run: str, worker: str, report: WorkerReport) -> bool:
        """Remember a worker's report; asks nothing of the store.

        Returns:
            Whether it tells of a pull. One that brought nothing, of the version that was told before, is a sign of
            life: what was told of the last pull stays.
        """
        now = timestamp(self._now())
        with self._lock:
            known = self._known(run, worker, self._since())
            lives = known is not None and known.version == report.version and report.nbytes == 0
            if known is not None and lives:
                note = known.model_copy(update={"digest": report.digest, "reported_at": now})
            else:
                told = report.model_dump() | {"avoided": _first(report.avoided), "seconds": report.seconds}
                note = WorkerNote(**told, worker=worker, reported_at=now)
            self._gone.get(run, OrderedDict()).pop(worker, None)
            self._own.setdefault(run, {})[worker] = note
            self._dirty.add(run)
        return not lives

    def drop(self, run: str, worker: str) -> None:
        """Forget what this replica was told of a worker, to make room; no other replica is told so."""
        with self._lock:
            if self._own.get(run, {}).pop(worker, None) is not None:
                self._dirty.add(run)

    def forget(self, run: str, worker: str) -> bool:
        """List a worker no more, in any replica, until it reports again; asks nothing of the store.

        Returns:
            Whether it was listed here.
        """
        now = timestamp(self._now())
        with self._lock:
            known = self._known(run, worker, self._since())
            self._own.get(run, {}).pop(worker, None)
            # The replica that heard the report may have a clock that is ahead of this one.
            when = now if known is None else max(now, known.reported_at)
            left = self._gone.setdefault(run, OrderedDict())
            left.pop(worker, None)
            left[worker] = when
            if len(left) > self._max:
                left.popitem(last=False)
            self._dirty.add(run)
        return known is not None

    def knows(self, run: str, worker: str) -> bool:
        """Tell whether a worker is listed, as far as this replica knows."""
        with self._lock:
            return self._known(run, worker, self._since()) is not None

    def heard(self, run: str) -> int:
        """Return how many workers of a run reported to this replica."""
        with self._lock:
            return len(self._own.get(run, ()))

    def share(self) -> None:
        """Write what is new of all runs: see `share_run`.

        Raises:
            Exception: what is none of our errors, once all else was shared.
        """
        defect: Exception | None = None
        for run in self.unshared():
            try:
                self.share_run(run)
            except Exception as error:  # noqa: BLE001 - what is wrong with one run is no matter of the next
                defect = error
        if defect is not None:
            raise defect

    def unshared(self) -> list[str]:
        """Forget what counts no more, and return the runs of which there is something new to write, sorted."""
        with self._lock:
            self._forget_old()
            return sorted(self._dirty)

    def share_run(self, run: str) -> None:
        """Write what is new of a run for the other replicas; nothing is left where nothing counts.

        A failure is logged, and made up for the next time.

        Raises:
            Exception: what is none of our errors; it is made up for, too.
        """
        with self._lock:
            self._dirty.discard(run)
        try:
            text = self._shared(run)
            if text is None:
                self._store.delete(self._key(run))
            else:
                self._store.put(self._key(run), text)
        except Exception as error:
            with self._lock:
                self._dirty.add(run)
            if not isinstance(error, PulseError):
                raise
            logger.warning("run %s: the workers' reports are not shared: %s", run, error)

    def listed(self, state: RunState) -> WorkerList:
        """Return the workers of a run by name, as far as this replica knows; asks nothing of the store."""
        run = state.run
        fair = [*_fairest(self._listed(run).values(), self._max, inf)]
        told = [*map(partial(_told, len(state.versions) - 1, _digests(state, fair)), fair)]
        return WorkerList(run=run, workers=tuple(sorted(told, key=lambda worker: (worker.worker, worker.token))))

    def listing(self, state: RunState) -> Listing:
        """Return what `listed` does as it is answered, in `MAX_BYTES` or so.

        Of many workers it takes long: call it in a thread. It is made worker by worker, so that others come between.
        """
        listed = self.listed(state)
        made = Listing.of(state.run, listed.workers)
        if sum(len(line) for _, line in made.lines) > self._max_bytes:
            fair = {note.worker for note in _fairest(self._listed(state.run).values(), self._max, self._max_bytes)}
            told = zip(made.lines, listed.workers, strict=True)
            made = Listing(state.run, tuple(line for line, one in told if join_name(one.token, one.worker) in fair))
        return made

    def standing(self, state: RunState, most: int, max_bytes: int) -> tuple[WorkerSummary, list[WorkerBody]]:
        """Return how all workers of a run stand, and those furthest behind in so many bytes, each token's in turn.

        First come those whose digest is not that of their version. Of many workers it takes long: call it in a thread.
        """
        notes = self._listed(state.run).values()
        digests = _digests(state, notes)
        furthest = sorted(notes, key=lambda n: (not _differs(n, digests), n.version, n.worker))
        told = [_told(len(state.versions) - 1, digests, note) for note in _in_turns(furthest)[:most]]
        sizes = accumulate(len(worker.model_dump_json()) for worker in told)
        shown = [worker for worker, size in zip(told, sizes, strict=True) if size <= max_bytes]
        return _summary(notes, digests), shown

    def overview(self, state: RunState) -> tuple[WorkerSummary, float | None, int]:
        """Return how all workers of a run stand, the longest pause of one for its last pull, and how many avoided
        an object in it. Of many workers it takes long: call it in a thread.
        """
        notes = self._listed(state.run).values()
        avoided = sum(bool(note.avoided) for note in notes)
        return _summary(notes, _digests(state, notes)), _longest_pause(notes), avoided

    def figures(self, state: RunState, log_age_s: float) -> RunFigures:
        """Return how a run and its workers stand."""
        newest, latest = len(state.versions) - 1, state.latest
        notes = self._listed(state.run).values()
        digests = _digests(state, notes)
        lacks = [max(0, newest - note.version) for note in notes]
        return RunFigures(
            state.run,
            newest,
            log_age_s,
            min(len(notes), self._max),
            max(lacks, default=0),
            version_age_s=None if latest is None else self._age_of(latest.created_at),
            behind=tuple(sum(lack >= least for lack in lacks) for least in BEHIND),
            differing=sum(_differs(note, digests) for note in notes),
            pause_s=_longest_pause(notes),
        )

    def is_stale(self, run: str) -> bool:
        """Tell whether what the other replicas wrote should be read anew before the run's workers are listed."""
        return self._age_s(run) >= self._share_s

    def is_due(self, run: str) -> bool:
        """Tell whether that should be read although nobody asks: so that figures don't stand still where other replicas
        have heard of workers, and now and then where none has.
        """
        with self._lock:
            others = self._others.get(run, _NOTHING)
        pause = self._share_s if others.notes or others.gone else max(self._share_s, _QUIET_S)
        return self._clock() - others.read_at >= pause

    def gather(self, run: str) -> None:
        """Read what the other replicas wrote; one LIST and a GET each. A replica's object goes with its last report.

        Raises:
            StoreUnavailable: the store failed.
        """
        found: dict[str, WorkerNote] = {}
        left: dict[str, str] = {}
        nbytes = 0
        for key in [*islice(self._store.list(f"{run}/reports/"), _MOST_REPLICAS)]:
            if key == self._key(run):
                continue
            file, size = self._read(key)
            nbytes += size
            notes, gone = self._live({note.worker: note for note in file.workers}), self._young(file.gone)
            if not notes and not gone:
                self._store.delete(key)
            for worker, note in notes.items():
                if worker not in found or found[worker].reported_at < note.reported_at:
                    found[worker] = note
            for worker, when in gone.items():
                left[worker] = max(when, left.get(worker, ""))
            if nbytes > self._max_bytes:  # at once: what a hundred replicas wrote is not in memory together
                found = {note.worker: note for note in _fairest(found.values(), self._max, self._max_bytes)}
            if len(left) > self._max:
                left = dict(nlargest(self._max, left.items(), key=itemgetter(1)))
        with self._lock:
            self._others[run] = _Others(self._clock(), found, left)

    def _shared(self, run: str) -> bytes | None:
        """Return what is written of a run, and forget what that has no room for; None where there is nothing."""
        with self._lock:
            notes: Collection[WorkerNote] = self._live(self._own.get(run, {})).values()
            gone = self._young(self._gone.get(run, {}))
        if not notes and not gone:
            return None
        text = ReportFile.of(tuple(notes), gone).text()
        if len(text) > self._max_bytes or len(notes) > self._max:
            room = self._max_bytes - len(ReportFile.of((), gone).text())
            kept = {note.worker: note for note in _fairest(notes, self._max, room)}
            text = ReportFile.of(tuple(kept.values()), gone).text()
            with self._lock:
                own = self._own.get(run, {})
                for note in notes:
                    if note.worker not in kept and own.get(note.worker) is note:
                        del own[note.worker]
        return text

    def _forget_old(self) -> None:
        """Forget what counts no more, of all runs; the lock is held."""
        for run in [*self._own]:
            live = self._live(self._own[run])
            if len(live) < len(self._own[run]):
                self._own[run] = dict(live)
            if not live:
                del self._own[run]
                self._dirty.add(run)
        for run in [*self._gone]:
            young = self._young(self._gone[run])
            if len(young) < len(self._gone[run]):
                self._gone[run] = OrderedDict(young)
            if not young:
                del self._gone[run]
                self._dirty.add(run)
        now = self._clock()
        self._others = {run: others for run, others in self._others.items() if now - others.read_at <= self._keep_s}

    def _read(self, key: str) -> tuple[ReportFile, int]:
        try:
            data = self._store.get(key, max_bytes=MAX_BYTES)
            return ReportFile.model_validate_json(data), len(data)
        except (NotFound, CorruptObject, ValidationError) as error:
            logger.warning("%s: the reports in it can't be read: %s", key, type(error).__name__)
            return ReportFile(workers=()), 0

    def _age_of(self, created_at: str) -> float:
        """Return how long ago a version was committed, in seconds; 0 where its writer's clock is ahead."""
        return max(0.0, (self._now() - datetime.fromisoformat(created_at)).total_seconds())

    def _age_s(self, run: str) -> float:
        with self._lock:
            return self._clock() - self._others.get(run, _NOTHING).read_at

    def _listed(self, run: str) -> Notes:
        """Return the newest note of each worker that is listed."""
        since = self._since()
        with self._lock:  # which the event loop waits for: not for as long as thousands of notes take
            heard, left = dict(self._own.get(run, {})), dict(self._gone.get(run, {}))
            others = self._others.get(run, _NOTHING)
        known = ((worker, _newest(worker, heard, left, others, since)) for worker in {**others.notes, **heard})
        return {worker: note for worker, note in known if note is not None}

    def _known(self, run: str, worker: str, since: str) -> WorkerNote | None:
        """Return a worker's newest note if it is not older than ``since``, nor than its going; the lock is held."""
        others = self._others.get(run, _NOTHING)
        return _newest(worker, self._own.get(run, {}), self._gone.get(run, {}), others, since)

    def _live(self, notes: Notes) -> Notes:
        since = self._since()
        return {worker: note for worker, note in notes.items() if note.reported_at >= since}

    def _young(self, gone: Gone) -> Gone:
        since = self._since()
        return {worker: when for worker, when in gone.items() if when >= since}

    def _since(self) -> str:
        return timestamp(self._now() - timedelta(seconds=self._keep_s))

    def _key(self, run: str) -> str:
        return f"{run}/reports/{self._replica}.json"


def _fairest(notes: Collection[WorkerNote], most: int, max_bytes: float) -> Iterable[WorkerNote]:
    """Return so many of the notes at most: the newest of each token, no token's second before each one's first."""
    if len(notes) <= most and max_bytes == inf:
        return notes
    ranked = _in_turns(sorted(notes, key=lambda note: note.reported_at, reverse=True))
    sizes = accumulate(len(note.model_dump_json()) + 1 for note in ranked) if max_bytes < inf else repeat(0)
    return (note for note, size in zip(ranked[:most], sizes, strict=False) if size <= max_bytes)


def _in_turns(notes: Iterable[WorkerNote]) -> list[WorkerNote]:
    """Return notes in another order: no token's second before each one's first, and so on."""
    ranks: Counter[str] = Counter()
    ranked: list[tuple[int, WorkerNote]] = []
    for note in notes:
        token, _ = split_name(note.worker)
        ranks[token] += 1
        ranked.append((ranks[token], note))
    return [note for _, note in sorted(ranked, key=itemgetter(0))]


def _newest(worker: str, heard: Notes, left: Gone, others: _Others, since: str) -> WorkerNote | None:
    own, other = heard.get(worker), others.notes.get(worker)
    newest = own if other is None or (own is not None and own.reported_at >= other.reported_at) else other
    gone = max(left.get(worker, ""), others.gone.get(worker, ""))
    return newest if newest is not None and newest.reported_at >= since and newest.reported_at > gone else None


def _longest_pause(notes: Iterable[WorkerNote]) -> float | None:
    return max((note.pause_s for note in notes if note.pause_s is not None), default=None)


def _first(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the first keys, as many as are listed of one worker."""
    keys = tuple(keys)
    sizes = accumulate(len(key) for key in keys)
    return tuple(key for key, size in zip(keys, sizes, strict=True) if size <= _AVOIDED_BYTES)


def _digests(state: RunState, notes: Iterable[WorkerNote]) -> Mapping[int, str]:
    """Return the digests of the versions that are told of, each looked up once, as far as they are known."""
    versions = {note.version for note in notes}
    return {version: entry.digest for version in versions if (entry := state.find(version)) is not None}


def _differs(note: WorkerNote, digests: Mapping[int, str]) -> bool:
    """Tell whether a worker serves other cells than its version has; of a version that is not known nobody can."""
    return digests.get(note.version, note.digest) != note.digest


def _summary(notes: Collection[WorkerNote], digests: Mapping[int, str]) -> WorkerSummary:
    counts = Counter(note.version for note in notes)
    newest = max(counts, default=None)
    return WorkerSummary.model_construct(
        workers=len(notes),
        differing=sum(_differs(note, digests) for note in notes),
        oldest=min(counts, default=None),
        newest=newest,
        at_newest=0 if newest is None else counts[newest],
    )


def _told(newest: int, digests: Mapping[int, str], note: WorkerNote) -> WorkerBody:
    token, worker = split_name(note.worker)
    return WorkerBody.model_construct(
        worker=worker,
        token=token,
        version=note.version,
        digest=note.digest,
        phases=note.phases,
        seconds=note.seconds,
        nbytes=note.nbytes,
        avoided=note.avoided,
        reported_at=note.reported_at,
        staleness=max(0, newest - note.version),
        digest_matches=None if note.version not in digests else digests[note.version] == note.digest,
    )
