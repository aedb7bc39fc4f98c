"""A reader's lease: tells the garbage collector which version a worker holds, so that its route to the newest stays.

Few writes: one when the worker first holds a version, then one whenever a third of the lease's time is over. No pull
waits for one or fails because of it: a lease that could not be written is an event, and is tried again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pulse_registry.errors import InvalidArgument, StoreUnavailable, told
from pulse_registry.events import Event, EventKind, Events
from pulse_registry.format import keys
from pulse_registry.process.background_thread import BackgroundThread
from pulse_registry.store.wrappers.retry import retrying_at_most
from pulse_schemas import Lease, Signer
from pulse_schemas.lease import MAX_LEASE_SECONDS

if TYPE_CHECKING:
    from pulse_registry.store import Store

_logger = logging.getLogger(__name__)
_RENEWALS: Final = 3
_AT_MOST_S: Final = 2.0
"""Closing waits for this thread: a store that is away for longer is asked again later."""
_AGAIN_S: Final = 15.0
"""In the time of a lease: two may fail before it runs out."""


def checked_seconds(seconds: float) -> int:
    """Return a lease's time in whole seconds.

    Raises:
        InvalidArgument: it is under a second or over a week.
    """
    if not 1 <= seconds <= MAX_LEASE_SECONDS:
        raise InvalidArgument(f"lease_seconds is {seconds}; it is from 1 to {MAX_LEASE_SECONDS}, or None for no lease")
    return int(seconds)


class ReaderLease:
    """The lease of one reader of one run; safe to share between threads.

    ``hold`` says which version is held, ``renew`` writes what is due; `LeaseKeeper` calls it in a thread.
    """

    def __init__(
        self,
        store: Store,
        run: str,
        reader: str,
        seconds: float,
        *,
        events: Events,
        signer: Signer | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is held and nothing written yet.

        Args:
            store: the store, scoped to the run's prefix.
            run: the run's name.
            reader: the reader's own name, which no other has.
            seconds: how long a lease is alive after it was written.
            events: are told of a lease that could not be written.
            signer: signs it.
            monotonic: seconds.

        Raises:
            InvalidArgument: ``seconds`` is out of its range.
        """
        self._store, self._run, self._reader = store, run, reader
        self._seconds = checked_seconds(seconds)
        self._events, self._signer, self._monotonic = events, signer, monotonic
        self._version: int | None = None
        self._due = monotonic()
        self._written = self._failing = False

    def hold(self, version: int) -> None:
        """Note which version the reader holds; it is written when a renewal is due."""
        self._version = version

    def renew(self) -> float | None:
        """Write the lease if it is due; return the seconds until it will be, None while nothing is held."""
        version = self._version
        if version is None:
            return None
        left = self._due - self._monotonic()
        if left > 0:
            return left
        # From before the write: the store's clock begins to count somewhere in between.
        self._due = self._monotonic() + self._seconds / _RENEWALS
        try:
            lease = Lease(run=self._run, reader=self._reader, version=version, seconds=self._seconds)
            with retrying_at_most(_AT_MOST_S):
                self._store.put(keys.lease_key(self._reader), lease.seal(self._signer))
        except Exception as error:  # noqa: BLE001 - a signer, or a store, that is not ours may raise anything
            self.fail(error)
        else:
            self._written, self._failing = True, False
        return max(0.0, self._due - self._monotonic())

    def fail(self, error: Exception) -> None:
        """Tell of a lease that could not be written, unless the one before it could not either.

        A store that is away is asked again soon.
        """
        if isinstance(error, StoreUnavailable):
            self._due = self._monotonic() + min(self._seconds / _RENEWALS, _AGAIN_S)
        if not self._failing:
            message = f"what version {self._version} needs may be deleted, for no lease could be written: {told(error)}"
            event = Event(EventKind.LEASE_FAILED, self._run, message, keys.lease_key(self._reader))
            self._events.tell(event, error)
        self._failing = True

    def give_up(self) -> None:
        """Remove the lease, if one was written: nothing is held any more. Idempotent."""
        self._version = None
        if not self._written:
            return
        self._written = False
        try:
            with retrying_at_most(_AT_MOST_S):
                self._store.delete(keys.lease_key(self._reader))
        except Exception as error:  # noqa: BLE001 - as in renew; a registry closes all the same
            _logger.info("run %s: the lease of %s is left to run out: %s", self._run, self._reader, told(error))


class LeaseKeeper:
    """Renews a lease in a thread of its own, from the first version held until it is closed or forgotten."""

    def __init__(self, lease: ReaderLease) -> None:
        """Take a lease; no thread yet."""
        self._lease = lease
        self._thread = BackgroundThread("pulse-lease", self._run)

    def hold(self, version: int) -> None:
        """Note which version is held, and return at once; where no thread can be started, the next call tries again."""
        with self._thread.changed:
            if self._thread.stopping:
                return
            self._lease.hold(version)
            try:
                self._thread.wake()
            except RuntimeError as error:  # no more threads for this process
                self._lease.fail(error)

    def stop(self) -> None:
        """Renew no more, and return at once. Idempotent."""
        self._thread.stop()

    def close(self) -> None:
        """Stop, and remove the lease. Idempotent."""
        self._thread.close()
        self._lease.give_up()

    def _run(self) -> None:
        while True:
            left = self._lease.renew()
            with self._thread.changed:
                if self._thread.rest(left):
                    return
