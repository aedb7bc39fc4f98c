"""Versions of a run: by number, tag or as the latest, as the log says when it is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from pulse_registry.errors import Behind, Gone, InvalidArgument, NotFound, StoreUnavailable
from pulse_registry.log import LogReader, RunState
from pulse_registry.log.integers import integer
from pulse_registry.log.names import LATEST, fold
from pulse_registry.process.fork import OwnerProcess
from pulse_registry.results import Version, VersionName, describe
from pulse_registry.store import Gateway, RetryPolicy
from pulse_schemas import Record, VersionEntry

_LONG_SECONDS: Final = 3600.0
Found = TypeVar("Found")


class Versions:
    """Finds a run's versions in its log.

    Attributes:
        run: the run's name.
    """

    def __init__(
        self,
        reader: LogReader,
        gateway: Gateway | None,
        url: str,
        owner: OwnerProcess,
        source: Callable[[], str | None] = lambda: None,
        patience: RetryPolicy | None = None,
    ) -> None:
        """Read a log.

        Args:
            reader: of the log.
            gateway: the service that it comes from, if any.
            url: of the registry, for messages.
            owner: the process that may ask.
            source: returns of what root the run is a copy, where it is one.
            patience: for how long a copy that lags is waited for; None: as for a store that is away.
        """
        self.run = reader.run
        self._reader, self._gateway = reader, gateway
        self._url, self._owner = url, owner
        self._source, self._patience = source, patience or RetryPolicy()

    @property
    def seen(self) -> RunState | None:
        """The run's state as last seen, if its log was read; no I/O."""
        return self._reader.seen

    def state(self) -> RunState:
        """Read what is new in the log and return the run's state; of a run that does not exist, the empty one.

        A copy that is known to lag is waited for; see ``look``.
        """
        return self._patiently(self.look)

    def look(self, told: Callable[[Record], None] | None = None) -> RunState:
        """Read what is new in the log, without waiting, and return the run's state; of no run, the empty one.

        Args:
            told: see ``LogReader.refresh``.

        Raises:
            Behind: the log is a copy that has not come as far as what was seen elsewhere.
            AccessDenied, CorruptObject, UnsupportedFormat, Untrusted, StoreUnavailable: it can't be read.
        """
        self._owner.check(f"this registry of run {self.run!r}")
        return self._reader.refresh(told)

    def found(
        self, version: VersionName, told: Callable[[Record], None] | None = None
    ) -> tuple[RunState, VersionEntry]:
        """Read what is new, and return the state with a version's entry in it.

        What the nearest root has not is asked of further ones; if there is none, and this one a copy, it is waited for.

        Args:
            version: its number, a tag or ``latest``.
            told: see ``LogReader.refresh``.

        Raises:
            NotFound: there is no such version.
            Behind: there is none yet at this root, which is a copy.
        """
        return self._patiently(lambda: self._found(version, told))

    def _found(self, version: VersionName, told: Callable[[Record], None] | None) -> tuple[RunState, VersionEntry]:
        state = self.look(told)
        try:
            return state, self.entry(state, version)
        except Gone:
            raise
        except NotFound as missing:
            further = self._reader.look_further()
            if further.seq > state.seq:
                return further, self.entry(further, version)
            if (source := self._source()) is None:
                raise
            raise Behind(
                f"{missing}; {self._url} holds a copy of {source}, which may have it: wait, or read that one"
            ) from missing

    def _patiently(self, look: Callable[[], Found]) -> Found:
        """Return what a look finds; where that is behind, look again and again, for as long as it is waited for."""

        def attempt() -> tuple[list[Found], StoreUnavailable | None]:
            try:
                return [look()], None
            except Behind:
                raise
            except StoreUnavailable as error:  # which was tried again already
                return [], error

        found, error = self._patience(attempt)
        if error is not None:
            raise error
        return found[0]

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
        return not isinstance(version, int) and self.found(version)[1].version != entry.version

    def all(self) -> list[Version]:
        """Return all versions, oldest first; retired ones are left out."""
        state = self.state()
        return [describe(state, entry) for entry in state.versions if not state.is_retired(entry.version)]

    def one(self, version: VersionName | None, step: int | None) -> Version:
        """Return one version, by name or by a trainer's step; see ``Registry.version``."""
        if step is None:
            return describe(*self.found("latest" if version is None else version))
        state = self.state()
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
