"""Versions of a run: by number, tag or as the latest, as the log says when it is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from pulse_registry.errors import InvalidArgument, NotFound
from pulse_registry.log import LogReader, RunState
from pulse_registry.log.integers import integer
from pulse_registry.log.names import LATEST, fold
from pulse_registry.process.fork import OwnerProcess
from pulse_registry.results import Version, VersionName, describe
from pulse_registry.store import Gateway
from pulse_schemas import VersionEntry

_LONG_SECONDS: Final = 3600.0


class Versions:
    """Finds a run's versions in its log.

    Attributes:
        run: the run's name.
    """

    def __init__(self, reader: LogReader, gateway: Gateway | None, url: str, owner: OwnerProcess) -> None:
        """Read a log; ``gateway``: the service that it comes from, if any."""
        self.run = reader.run
        self._reader, self._gateway = reader, gateway
        self._url, self._owner = url, owner

    def state(self) -> RunState:
        """Read what is new in the log and return the run's state; of a run that does not exist, the empty one."""
        self._owner.check(f"this registry of run {self.run!r}")
        return self._reader.refresh()

    def entry(self, state: RunState, version: VersionName) -> VersionEntry:
        """Return a version's entry.

        Raises:
            NotFound: there is no such version.
        """
        run = self.run
        if isinstance(version, str):
            version = fold(version)
        if version == LATEST:
            if state.latest is None:
                raise NotFound(f"run {run!r} in {self._url} has no versions yet")
            return state.latest
        if isinstance(version, str):
            if version not in state.tags:
                raise NotFound(f"run {run!r} has no version that is called {version!r}")
            version = state.tags[version]
        return state.version(integer(version, "version"))

    def moved(self, version: VersionName, entry: VersionEntry) -> bool:
        """Tell whether a name means another version now than the one that it meant."""
        return not isinstance(version, int) and self.entry(self.state(), version).version != entry.version

    def all(self) -> list[Version]:
        """Return all versions, oldest first; retired ones are left out."""
        state = self.state()
        return [describe(state, entry) for entry in state.versions if not state.is_retired(entry.version)]

    def one(self, version: VersionName | None, step: int | None) -> Version:
        """Return one version, by name or by a trainer's step; see ``Registry.version``."""
        state = self.state()
        if step is None:
            return describe(state, self.entry(state, "latest" if version is None else version))
        if version is not None:
            raise InvalidArgument("give a version or a step, not both")
        entry = state.by_step(step)
        if entry is None:
            raise NotFound(f"run {self.run!r} has no version of step {step}")
        return describe(state, entry)

    def wait(
        self, state: RunState, poll_seconds: float, timeout_s: float, sleep: Callable[[float], object]
    ) -> RunState:
        """Wait for what follows a state, and return the state after it; the same one if there was nothing.

        Over a service it folds what the answer brought, so that a record costs one request; over a bucket it looks
        once, after a pause.

        Raises:
            AccessDenied, CorruptObject, UnsupportedFormat, StoreUnavailable: the log can't be read.
        """
        if self._gateway is not None:
            try:
                if not self._gateway.wait_for_record(self.run, state.seq + 1, timeout_s):
                    return state
                found = self._reader.read(state.seq + 1)
                return state if found is None else self._reader.accept(found[1])
            except NotFound:
                pass  # the run is yet to be made
        sleep(min(poll_seconds, timeout_s))
        return self._reader.refresh()

    def watch(
        self, after: int | None, *, latest_only: bool, poll_seconds: float, timeout: float | None
    ) -> Iterator[Version]:
        """Yield versions newer than ``after``, as they are committed; see ``Registry.watch``."""
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
            state = self.wait(state, poll_seconds, left, time.sleep)
