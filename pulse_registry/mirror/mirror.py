"""The mirror of one run: copies what its log names from one root to another, byte for byte, objects first.

look at the source -> copy what its new records name -> put the records, in order. Beside that, so that no version waits
for it: outer rounds, leases, snapshots and hint, garbage. It may be killed anywhere: the copy's own log says where to
go on. Nothing is decoded, so that hashes and signatures hold.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from pulse_registry.errors import Conflict, CorruptObject, InvalidArgument, NotFound, PulseError, UnsupportedFormat
from pulse_registry.events import Events
from pulse_registry.format import keys
from pulse_registry.log.home import proved_move
from pulse_registry.log.mirror_mark import read_mark
from pulse_registry.log.names import run_name
from pulse_registry.mirror.claim import claim, may_live
from pulse_registry.mirror.collection import Collection
from pulse_registry.mirror.copier import Copier
from pulse_registry.mirror.documents import Documents
from pulse_registry.mirror.followed_log import FollowedRounds, FollowedRun
from pulse_registry.mirror.lanes import Lanes
from pulse_registry.mirror.leases import RENEWED_S, CarriedLeases
from pulse_registry.mirror.log_copy import Log, LogCopy
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.retention import RetentionPolicy
from pulse_registry.retention.leases import Leases
from pulse_registry.store import RetryStore, RunStore, Store
from pulse_schemas import HomeEntry

_COLLECT_S: Final = 600.0
"""How often what the copy needs no more is looked for: a LIST of its objects."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a step, or several, did.

    Attributes:
        records: put at the copy, those of outer rounds included.
        objects, nbytes: sent to it.
        present: objects that were there already.
        blocked: keys of what the source can't give, whole: the copy ends before the records that name them.
        seq, source_seq: newest record of the run at the copy, and at the source as last seen; -1: none.
        deleted: objects and leases deleted at the copy.
    """

    records: int = 0
    objects: int = 0
    nbytes: int = 0
    present: int = 0
    blocked: tuple[str, ...] = ()
    seq: int = -1
    source_seq: int = -1
    deleted: int = 0

    def and_then(self, later: Copied) -> Copied:
        """Return what both did, one after the other."""
        counts = ("records", "objects", "nbytes", "present", "deleted")
        return replace(later, **{name: getattr(self, name) + getattr(later, name) for name in counts})


class Mirror:
    """Copies one run. Several mirrors of one run do no harm: they write the same bytes.

    For one thread at a time, but that `tend` may go on in another one beside `look`.

    Attributes:
        begun: whether it has seen both sides, so that there is something to tend.
    """

    def __init__(
        self,
        source: Store,
        destination: Store,
        run: str,
        *,
        events: Events | None = None,
        verify: bool = False,
        lanes: Lanes | None = None,
        policy: RetentionPolicy | None = None,
        retrying: Callable[[Store], Store] = RetryStore,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            source: the root that has the run: a bucket, a folder or a service.
            destination: the root that is to have the copy: a bucket, a folder, or the copies of a service.
            run: the run's name.
            events: hear of what can't be copied.
            verify: read back what the copy has already, and send again what is damaged there.
            lanes: threads, memory and rate that it shares with other mirrors, and does not close; None: of its own.
            policy: of which the grace time at the copy counts; None: an hour.
            retrying: wraps a store so that calls that fail for a moment are made again.
            monotonic: seconds.

        Raises:
            InvalidArgument: the name is not valid, or the destination is a service.
        """
        self.run = run_name(run)
        if destination.gateway() is not None:
            raise InvalidArgument(
                f"{destination.url} is a service as trainers see it: open its copies (`open_copies`), or the bucket"
            )
        root = retrying(destination)
        self._source, self._source_url = RunStore(retrying(source), self.run), source.url
        self._destination, self._destination_url = RunStore(root, self.run), destination.url
        self._events, self._monotonic, self._verify = events or Events(), monotonic, verify
        self._lanes, self._owns_lanes = lanes or Lanes(), lanes is None
        self._listed: set[str] = set()
        self._copier = Copier(
            self._source, self._destination, root, self.run, self._lanes, verify=verify, listed=self._listed
        )
        self._run = self._log_copy(FollowedRun)
        self._rounds = self._log_copy(FollowedRounds)
        self._logs: tuple[LogCopy[Any], ...] = (self._run, self._rounds)
        self._each = each = ParallelMap(self._lanes.askers, at_once=16)
        self._leases = CarriedLeases(self._source, self.run, self._events, monotonic, each)
        self._collection = Collection(self._destination, self.run, each, policy or RetentionPolicy())
        self._carried = self._collected = -math.inf  # when that was done last
        self._documents = Documents(self._source, self._destination, verify=verify)
        self.begun = False
        self._lost: dict[str, PulseError] = {}  # that the copy has lost, and the source can't give, with why
        self._carrying = threading.Lock()
        self._proved: str | None = None  # the move that is known to have led to the source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up its lease, and end its threads. Idempotent."""
        self._leases.close()
        if self._owns_lanes:
            self._lanes.close()

    def wait(self, poll_s: float, sleep: Callable[[float], object] = time.sleep) -> None:
        """Wait for a record at the source, at most so long: a service answers at once, a bucket is not asked.

        Raises:
            AccessDenied, StoreUnavailable: the service can't tell.
        """
        gateway = self._source.gateway()
        if gateway is None:
            sleep(poll_s)
            return
        with suppress(NotFound):
            gateway.wait_for_record(self.run, self._run.source.seq + 1, poll_s)

    def catch_up(self) -> Copied:
        """Copy until the copy has what the source has now, and all that goes with it; later records as they come along.

        Raises:
            CorruptObject: the source can't give an object that a record names; the copy ends before that record.
            Conflict: it ends before a record that names a base that is closed at the copy, and may yet be deleted.
            Others as ``step``; what was copied stays: call again.
        """
        done, newest = Copied(), None
        while True:
            one = self.step()
            done = done.and_then(one)
            for key, error in self._blocked().items():
                ends = f"no record is copied that names it: the copy ends at record {one.seq} of {one.source_seq}"
                if isinstance(error, Conflict):
                    raise Conflict(f"run {self.run!r}: {error}; {ends}") from error
                raise CorruptObject(
                    f"run {self.run!r}: {self._source_url} can't give {key}, whole, and {ends}: restore it there, or "
                    "retire it"
                ) from error
            newest = one.source_seq if newest is None else newest  # a writer may be faster than any copy
            if not one.records or one.seq >= newest:
                return done

    @property
    def left(self) -> HomeEntry | None:
        """Where the run has moved to from the source, if the copy has all that this had; None: it goes on there.

        A service does not say whether a run lives in its root: behind one, only a move to the copy itself is seen.

        Raises:
            CorruptObject, UnsupportedFormat, StoreUnavailable: the source can't tell.
        """
        run, home = self._run, self._moved
        if home is None or any(log.behind for log in self._logs):
            return None
        if self._source.gateway() is not None:
            return home if proved_move(self._destination, self.run) == home.move else None
        if read_mark(self._source) is not None:
            return None  # a copy itself, whose home goes on
        if may_live(self._source, self.run, run.source):
            self._proved = home.move
            return None
        return home

    @property
    def _moved(self) -> HomeEntry | None:
        """The newest move, unless it is known to have led here."""
        home = self._run.source.home
        return None if home is None or home.move == self._proved else home

    def step(self, *, tidy: bool = True) -> Copied:
        """Copy what is new at the source, up to the newest record that is there: `look`, and then `tend`.

        Args:
            tidy: as `tend`.

        Raises:
            As `look`.
        """
        self._open()
        records = self._run.bring()
        return self._copied(records).and_then(self.tend(tidy=tidy))

    def look(self) -> Copied:
        """Copy the records of the run that are new, outer rounds left out, and no more of them than can be put by now.

        Raises:
            NotFound: the source has no such run.
            Conflict: the destination has a run of this name that is no copy.
            Forked: the two have other records of one number; nothing was written.
            CorruptObject, UnsupportedFormat: the source's log can't be read.
            AccessDenied, StoreUnavailable: a store did not do it; what was copied stays: call again.
        """
        self._open()
        return self._copied(self._run.bring(whole=False))

    def tend(self, *, tidy: bool = True) -> Copied:
        """Do what no version is to wait for: copy outer rounds, keep leases. Nothing, before the first look.

        Args:
            tidy: look for countersignatures, snapshots and the hint, for outer rounds where there were none, and now
                and then for garbage, too: some requests more, which need not follow on every record.

        Raises:
            As `look`.
        """
        if not self.begun:
            return Copied()
        self._hold()
        records = deleted = 0
        if tidy or self._rounds.source.seq >= 0:
            records = self._rounds.bring()
        if tidy:
            for log in self._logs:
                self._documents.copy(log.source.folder, log.copy.seq)
            deleted = self._collect()
        return self._copied(records, deleted)

    @property
    def has_more(self) -> bool:
        """Whether there is something for `tend` even if it is not to tidy up: outer rounds, or a move."""
        return self.begun and (self._rounds.source.seq >= 0 or self._moved is not None)

    def _copied(self, records: int, deleted: int = 0) -> Copied:
        objects, nbytes, present = self._copier.tally.taken()
        run, blocked = self._run, tuple(self._blocked())
        return Copied(records, objects, nbytes, present, blocked, run.copy.seq, run.source.seq, deleted)

    def _blocked(self) -> dict[str, PulseError]:
        return {**self._lost, **self._run.blocked, **self._rounds.blocked}

    def _open(self) -> None:
        self._lost = {}
        if not self.begun:
            self._begin()
            self._hold()
            self.begun = True

    def _begin(self) -> None:
        """Open both logs, claim the destination, compare what they have; copy what the copy has lost."""
        for log in self._logs:
            log.copy.refresh()  # first: another mirror may go on meanwhile
            log.source.refresh()
        if self._run.source.seq < 0:
            raise NotFound(f"there is no run {self.run!r} in {self._source_url}")
        claim(self._destination, self.run, self._source_url, [log.copy for log in self._logs])
        for log in self._logs:
            log.compare()
            if self._verify:
                log.verify(self._each)
        for folder in (keys.OBJECTS, keys.OUTER + keys.OBJECTS, keys.LAYOUTS):
            self._listed.update(self._destination.list(folder))
        for log in self._logs:
            self._lost |= log.restore(() if self._verify else self._listed)
        # What is live no record to come names, and a set keeps its memory until `clear`: many runs have little.
        state = self._run.copy.state
        others = [key for key in self._listed if not state.is_live(key)]
        self._listed.clear()
        self._listed.update(others)

    def _hold(self) -> None:
        """Ask the source to keep what leads from the copy's newest version to its own."""
        copied = self._run.copy.state.latest or self._run.source.state.latest
        if copied is not None:
            self._leases.hold(copied.version)

    def _meanwhile(self) -> None:
        """Renew leases that would run out while one step goes on."""
        self._hold()
        if self._monotonic() - self._carried >= RENEWED_S:
            self._carry()

    def _carry(self) -> Leases | None:
        """Carry the leases of the copy's readers to the source, and return them; None if they can't be known."""
        if not self._carrying.acquire(blocking=False):
            return None  # the other thread is about it
        try:
            self._carried = self._monotonic()
            try:
                leases = self._collection.leases()
            except (CorruptObject, UnsupportedFormat) as error:
                self._leases.keep(error)
                return None
            self._leases.carry(leases.held)
            return leases
        finally:
            self._carrying.release()

    def _collect(self) -> int:
        """Carry leases; now and then delete what the copy needs no more."""
        leases, now = self._carry(), self._monotonic()
        if leases is None or now - self._collected < _COLLECT_S:
            return 0
        self._collected = now
        return self._collection.collect(self._run.source, self._run.copy, self._rounds.copy, leases.dead)

    def _log_copy(self, kind: Callable[[Store, str], Log]) -> LogCopy[Log]:
        return LogCopy(
            kind(self._source, self.run),
            kind(self._destination, self.run),
            self._destination,
            self._copier,
            run=self.run,
            urls=(self._source_url, self._destination_url),
            events=self._events,
            meanwhile=self._meanwhile,
            monotonic=self._monotonic,
        )
