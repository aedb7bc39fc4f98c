"""Collector of a root's shared bases: closes those to which no run refers, and deletes closed ones after a grace time.

Two phases, never in one run: a base is closed, and its files go at a later look, which finds the mark first and no
reference after it. It may be killed anywhere, and several may run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pulse_registry.bases.sharing import LOOK_SECONDS, close
from pulse_registry.errors import InvalidArgument, NotFound
from pulse_registry.format import keys
from pulse_registry.log import StoreClock
from pulse_registry.log.runs import list_runs
from pulse_registry.process.parallel import Map
from pulse_registry.store import PrefixStore, Store
from pulse_schemas import BASES

GRACE_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class SharedBase:
    """A base of a root, as a collection found it.

    Attributes:
        id: its name.
        files: how many of its files are there.
        nbytes: theirs.
        runs: those that refer to it, in the order of their names.
        unborn: those of them that have no log: their trainer is about to write it, or has died.
        closed: since when it takes no new reference, by the store's clock; None: it is open.
        due: what becomes of it: ``closed`` now, or its files ``deleted`` now; None: nothing.
    """

    id: str
    files: int
    nbytes: int
    runs: tuple[str, ...]
    unborn: tuple[str, ...]
    closed: datetime | None
    due: str | None


class BaseCollector:
    """Collects the shared bases of one root; for one thread at a time."""

    def __init__(self, root: Store, *, each: Map = map) -> None:
        """Prepare; no I/O yet.

        Args:
            root: the store of all runs: the bucket itself, not a service.
            each: how to make many requests: `map`, or a parallel one.

        Raises:
            InvalidArgument: it is a service, or several roots.
        """
        if root.gateway() is not None:
            raise InvalidArgument(f"{root.url} is a service, which lists no bases: go to the bucket")
        if root.roots() is not None:
            raise InvalidArgument(f"{root.url}: each root has bases of its own: name one of them")
        self._root, self._each = root, each
        self._below = PrefixStore(root, BASES.rstrip("/"))

    def collect(self, grace_seconds: float = GRACE_SECONDS, *, dry_run: bool = True) -> list[SharedBase]:
        """Close bases without references, and delete the files of those that are closed for long; or only look.

        Costs a LIST, and one a run, and a HEAD for each file of a base and each mark. What it has found counts for ten
        minutes: a base whose turn to be deleted comes later is left to the next call.

        Args:
            grace_seconds: how long a base is closed before its files go: longer than a pull takes.
            dry_run: change nothing.

        Raises:
            AccessDenied, StoreUnavailable: the store did not do it; what was done stays done: run it again.
        """
        files = self._files()
        if not files:
            return []
        clock = StoreClock(self._below)
        now = clock.now()
        closed = dict(zip(files, self._each(lambda base: self._closed(clock, base), files), strict=True))
        runs = self._references()  # only now: who refers to a base that was closed before this is seen
        found: list[SharedBase] = []
        for base, names in files.items():
            sizes = list(self._each(self._size, names))
            due, since = None, closed[base]
            if not runs.get(base) and since is None:
                due = "closed"
            elif not runs.get(base) and names and since is not None and now - since > timedelta(seconds=grace_seconds):
                due = "deleted"
            unborn = tuple(run for run in runs.get(base, ()) if self._is_unborn(run))
            found.append(SharedBase(base, len(names), sum(sizes), tuple(runs.get(base, ())), unborn, since, due))
            if dry_run:
                continue
            if due == "closed":
                close(self._root, base)
            if due == "deleted" and clock.now() - now <= timedelta(seconds=LOOK_SECONDS):
                for _ in self._each(self._root.delete, names):
                    pass
        return found

    def _files(self) -> dict[str, list[str]]:
        """Return the keys of the files of each base."""
        found: dict[str, list[str]] = {}
        for folder in self._root.folders(BASES):
            base = keys.base_of_folder(folder)
            if base is not None:
                found[base] = [key for key in self._root.list(folder) if key != keys.closed_key(base)]
        return found

    def _is_unborn(self, run: str) -> bool:
        return not self._root.exists(f"{run}/{keys.record_key(0)}")

    def _size(self, key: str) -> int:
        try:
            return self._root.size(key)
        except NotFound:
            return 0  # another collector was faster

    def _closed(self, clock: StoreClock, base: str) -> datetime | None:
        try:
            return clock.written(keys.closed_key(base).removeprefix(BASES))
        except NotFound:
            return None

    def _references(self) -> Mapping[str, list[str]]:
        """Return the runs that refer to each base."""

        def of_run(run: str) -> list[str]:
            found = (keys.reference_of(key) for key in PrefixStore(self._root, run).list(keys.REFERENCES))
            return [base for base in found if base is not None]

        runs = list(list_runs(self._root))
        references: dict[str, list[str]] = {}
        for run, bases in zip(runs, self._each(of_run, runs), strict=True):
            for base in bases:
                references.setdefault(base, []).append(run)
        return references
