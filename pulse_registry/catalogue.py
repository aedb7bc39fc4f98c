"""The catalogue of a run: which versions there are, what leads to them, what they are called, and which stay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from pulse_registry.errors import InvalidArgument, NotFound
from pulse_registry.log import RunState
from pulse_registry.log.names import LATEST, fold, tag_name
from pulse_registry.log.tail import await_news
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.pull.fetch import FETCH_THREADS
from pulse_registry.pull.route import Route, plan
from pulse_registry.push.labels import integer
from pulse_registry.results import Version, VersionName, describe
from pulse_registry.retention import Collected, Collector, Policy
from pulse_registry.runtime.runtime import Workings
from pulse_registry.signing.countersigning import Countersigning, RefusedRecord
from pulse_schemas import Layout, VersionEntry

_LONG_SECONDS = 3600.0


class Catalogue(Workings):
    """Versions, layouts, routes, tags and retention of one run."""

    def state(self) -> RunState:
        """Read what is new in the log and return the run's state; of a run that does not exist, the empty one."""
        self._check_process()
        return self._reader.refresh()

    def versions(self) -> list[Version]:
        """Return all versions, oldest first; retired ones are left out."""
        state = self.state()
        return [describe(state, entry) for entry in state.versions if not state.is_retired(entry.version)]

    def version(self, version: VersionName | None = None, *, step: int | None = None) -> Version:
        """Return one version, by number, as ``"latest"`` (the default), or the newest one of a trainer's step.

        Raises:
            NotFound: there is none.
        """
        state = self.state()
        if step is None:
            return describe(state, self._entry(state, "latest" if version is None else version))
        if version is not None:
            raise InvalidArgument("give a version or a step, not both")
        entry = state.by_step(step)
        if entry is None:
            raise NotFound(f"run {self.run!r} has no version of step {step}")
        return describe(state, entry)

    def layout(self, version: VersionName = "latest") -> Layout:
        """Return the names, dtypes and shapes of a version's tensors.

        Raises:
            NotFound: there is no such version.
            CorruptObject, UnsupportedFormat, StoreUnavailable: the layout can't be read.
        """
        return self._working().geometry(self._entry(self.state(), version).layout).layout

    def route(self, from_version: int | None = None, to: VersionName = "latest") -> Route:
        """Return the cheapest way from a version, or from nothing, to another.

        Raises:
            NotFound: a version does not exist, or nothing leads there.
        """
        state = self.state()
        return plan(state, self._entry(state, to).version, have=from_version, object_cost=self._object_cost())

    def watch(
        self,
        after: int | None = None,
        *,
        latest_only: bool = False,
        poll_seconds: float = 0.5,
        timeout: float | None = None,
    ) -> Iterator[Version]:
        """Yield versions newer than ``after``, as they are committed; without it, those newer than now.

        Over a bucket it tails the log: a look costs one GET. A service answers as soon as there is something new, so
        that a version costs one request.

        Args:
            after: a version's number; -1 begins with the first one.
            latest_only: yield the newest of what is new at each look and skip those before it, so that who takes
                longer over a version than the trainer does not fall behind.
            poll_seconds: between two looks at a bucket's log.
            timeout: ends after so many seconds without a new version; None: never.
        """
        state = self.state()
        seen = after if after is not None else len(state.versions) - 1
        last = time.monotonic()
        while True:
            new = [entry for entry in state.versions[seen + 1 :] if not state.is_retired(entry.version)]
            if len(state.versions) > seen + 1:
                seen, last = len(state.versions) - 1, time.monotonic()
            for entry in new[-1:] if latest_only else new:
                yield describe(state, entry)
                last = time.monotonic()
            left = _LONG_SECONDS if timeout is None else last + timeout - time.monotonic()
            if left <= 0:
                return
            state = await_news(self._reader, self._gateway, state, poll_seconds=poll_seconds, timeout_s=left)

    def tags(self) -> dict[str, int]:
        """Return the names that stand for versions."""
        return dict(sorted(self.state().tags.items()))

    def tag(self, name: str, version: VersionName | None) -> int | None:
        """Give a version a name, which ``pull`` takes for it, and which keeps it for as long; None takes the name away.

        ``tags`` tells which version a name stands for.

        Returns:
            The version that the name stood for until now, which it does not keep any more; None if it stood for none.

        Raises:
            InvalidArgument: it is no name (a letter first, then those, 0 to 9, '.', '_' and '-', at most 64; not
                ``latest``), or the version was retired.
            NotFound: there is no such version.
            AccessDenied, StoreUnavailable: the store did not take it.
        """
        name = tag_name(name)
        number = None if version is None else self._entry(self.state(), version).version
        return self._writer().tag(name, number)

    def gc(self, policy: Policy | None = None, *, dry_run: bool = True) -> Collected:
        """Retire the versions that a policy does not keep, and delete what was retired longer ago than its grace time.

        Args:
            policy: what is kept, beside tagged versions, and what workers with a lease need; None: `Policy()`.
            dry_run: only look, and tell what would be done.

        Raises:
            NotFound: there is no such run.
            InvalidArgument: this is a service, which does it itself.
            CorruptObject, UnsupportedFormat, Untrusted: the log, or a lease, can't be read.
            AccessDenied, StoreUnavailable: the store did not do it; run it again.
        """
        if self._gateway is not None:
            raise InvalidArgument(f"{self.url} is a service, which collects by itself: go to the bucket")
        with self._around.threads(FETCH_THREADS, "pulse-gc") as pool:
            collector = Collector(
                self._store, self.run, self._reader, self._writer(), self._around.new_id, each=ParallelMap(pool)
            )
            return collector.collect(policy or Policy(), dry_run=dry_run)

    def refused_records(self) -> list[RefusedRecord]:
        """Read the whole log and return its records that readers with this one's pins refuse, oldest first.

        Raises:
            NotFound: there is no such run.
            InvalidArgument: no keys are pinned; or this is a service: go to the bucket.
            CorruptObject, UnsupportedFormat, StoreUnavailable: the log can't be read.
        """
        with self._countersigning() as found:
            return found.refused()

    def countersign(self, until: str) -> list[RefusedRecord]:
        """Answer, with this registry's signing key, for the records that readers refuse, up to one; return them.

        From then on readers that pin the key believe these records as if it had signed them. Look at all of them first
        (``refused_records``): who countersigns a record is its author.

        Args:
            until: the ``name`` of the newest one.

        Raises:
            Untrusted: there is no signing key, or one that may not sign such a record; nothing was written.
            Conflict: the log has changed since: look again; nothing was written.
            NotFound, InvalidArgument, CorruptObject, UnsupportedFormat, StoreUnavailable: as ``refused_records``.
        """
        with self._countersigning() as found:
            return found.countersign(until)

    @contextmanager
    def _countersigning(self) -> Iterator[Countersigning]:
        self._check_process()
        if self._gateway is not None:
            raise InvalidArgument(f"{self.url} is a service, which takes no countersignatures: go to the bucket")
        with self._around.threads(FETCH_THREADS, "pulse-log") as pool:
            yield Countersigning(self._store, self._reader, self.signer, each=ParallelMap(pool))

    def _entry(self, state: RunState, version: VersionName) -> VersionEntry:
        if isinstance(version, str):
            version = fold(version)
        if version == LATEST:
            if state.latest is None:
                raise NotFound(f"run {self.run!r} in {self.url} has no versions yet")
            return state.latest
        if isinstance(version, str):
            if version not in state.tags:
                raise NotFound(f"run {self.run!r} has no version that is called {version!r}")
            version = state.tags[version]
        return state.version(integer(version, "version"))
