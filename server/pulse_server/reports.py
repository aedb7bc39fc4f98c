"""What workers report of themselves: kept in memory by the replica that heard it, and shared through the bucket.

Each replica writes one object a run, now and then, and reads those of the others when somebody asks. Reports that are
old count no more. They say nothing of a run's truth: a lost one costs a line on a page.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

from pydantic import ValidationError

from pulse_registry.errors import CorruptObject, NotFound, PulseError
from pulse_registry.log import Clock, RunState, timestamp
from pulse_registry.store import Store
from pulse_schemas.api import ReportFile, WorkerBody, WorkerList, WorkerNote, WorkerReport
from pulse_server.metrics import RunFigures

MAX_WORKERS: Final = 10_000
"""Workers of a run that are remembered; those that reported last."""

logger = logging.getLogger(__name__)
Notes = Mapping[str, WorkerNote]


class Reports:
    """The workers' reports of all runs. Thread-safe."""

    def __init__(
        self,
        store: Store,
        *,
        replica: str,
        now: Clock,
        share_s: float,
        keep_s: float,
        max_workers: int = MAX_WORKERS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with no report.

        Args:
            store: holds all runs.
            replica: this process's own name among those over the same bucket.
            now: the time that a report gets.
            share_s: how long what others wrote is taken as new.
            keep_s: how long a report counts.
            max_workers: of one run.
            clock: monotonic time in seconds.
        """
        self._store, self._replica, self._now = store, replica, now
        self._share_s, self._keep_s, self._max = share_s, keep_s, max_workers
        self._clock = clock
        self._lock = threading.Lock()
        self._own: dict[str, OrderedDict[str, WorkerNote]] = {}
        self._others: dict[str, tuple[float, Notes]] = {}
        self._dirty: set[str] = set()

    def take(self, run: str, worker: str, report: WorkerReport) -> None:
        """Remember a worker's report; asks nothing of the store."""
        note = WorkerNote(
            **report.model_dump(), seconds=report.seconds, worker=worker, reported_at=timestamp(self._now())
        )
        with self._lock:
            notes = self._own.setdefault(run, OrderedDict())
            notes.pop(worker, None)
            notes[worker] = note
            if len(notes) > self._max:
                notes.popitem(last=False)
            self._dirty.add(run)

    def heard(self, run: str) -> int:
        """Return how many workers of a run reported to this replica."""
        with self._lock:
            return len(self._own.get(run, ()))

    def share(self) -> None:
        """Write what is new for the other replicas. A failure is logged, and made up for the next time."""
        with self._lock:
            dirty, self._dirty = self._dirty, set()
        for run in sorted(dirty):
            with self._lock:
                notes = tuple(self._live(self._own.get(run, {})).values())
            try:
                self._store.put(self._key(run), ReportFile(workers=notes).model_dump_json().encode())
            except PulseError as error:
                logger.warning("run %s: the workers' reports are not shared: %s", run, error)
                with self._lock:
                    self._dirty.add(run)

    def listed(self, state: RunState) -> WorkerList:
        """Return the workers of a run by name, as far as this replica knows; asks nothing of the store."""
        run = state.run
        with self._lock:
            _, others = self._others.get(run, (0.0, {}))
            found = dict(self._live(others))
            for worker, note in self._live(self._own.get(run, {})).items():
                if worker not in found or found[worker].reported_at <= note.reported_at:
                    found[worker] = note
        newest = sorted(found.values(), key=lambda note: note.reported_at)[-self._max :]
        return WorkerList(
            run=run, workers=tuple(_told(state, note) for note in sorted(newest, key=lambda note: note.worker))
        )

    def figures(self, state: RunState, log_age_s: float) -> RunFigures:
        """Return how a run and its workers stand."""
        workers = self.listed(state).workers
        staleness = max((worker.staleness for worker in workers), default=0)
        return RunFigures(state.run, len(state.versions) - 1, log_age_s, len(workers), staleness)

    def is_stale(self, run: str) -> bool:
        """Tell whether what the other replicas wrote should be read anew before the run's workers are listed."""
        with self._lock:
            read_at, _ = self._others.get(run, (float("-inf"), {}))
        return self._clock() - read_at >= self._share_s

    def gather(self, run: str) -> None:
        """Read what the other replicas wrote; one LIST and a GET each. A replica's object goes with its last report.

        Raises:
            StoreUnavailable: the store failed.
        """
        found: dict[str, WorkerNote] = {}
        for key in [*self._store.list(f"{run}/reports/")]:
            if key == self._key(run):
                continue
            notes = self._live({note.worker: note for note in self._read(key)})
            if not notes:
                self._store.delete(key)
            for worker, note in notes.items():
                if worker not in found or found[worker].reported_at < note.reported_at:
                    found[worker] = note
        with self._lock:
            self._others[run] = self._clock(), found

    def _read(self, key: str) -> tuple[WorkerNote, ...]:
        try:
            return ReportFile.model_validate_json(self._store.get(key)).workers
        except (NotFound, CorruptObject, ValidationError) as error:
            logger.warning("%s: the reports in it can't be read: %s", key, type(error).__name__)
            return ()

    def _live(self, notes: Notes) -> Notes:
        since = timestamp(self._now() - timedelta(seconds=self._keep_s))
        return {worker: note for worker, note in notes.items() if note.reported_at >= since}

    def _key(self, run: str) -> str:
        return f"{run}/reports/{self._replica}.json"


def _told(state: RunState, note: WorkerNote) -> WorkerBody:
    known = state.find(note.version)
    return WorkerBody.model_construct(
        worker=note.worker,
        version=note.version,
        digest=note.digest,
        phases=note.phases,
        seconds=note.seconds,
        nbytes=note.nbytes,
        avoided=note.avoided,
        reported_at=note.reported_at,
        staleness=max(0, len(state.versions) - 1 - note.version),
        digest_matches=known is not None and known.digest == note.digest,
    )
