"""A store that tries again when the one below is unavailable for a moment."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NoReturn, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type

from pulse_registry.errors import InvalidArgument, StoreUnavailable
from pulse_registry.store.base import Body, Buffer, ByteRange, LocalFiles, Store, modified, read_into
from pulse_registry.store.wrapper import WrapperStore

T = TypeVar("T")


class Retries:
    """Makes a call until it succeeds, fails for good, or the bounds are reached: what RetryStore does for each verb."""

    def __init__(
        self,
        *,
        attempts: int = 5,
        total_s: float = 30.0,
        first_pause_s: float = 0.1,
        longest_pause_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """Set the bounds: see RetryStore.

        Raises:
            InvalidArgument: a bound is not positive.
        """
        if attempts < 1 or min(total_s, first_pause_s, longest_pause_s) <= 0:
            raise InvalidArgument("attempts, total_s, first_pause_s and longest_pause_s must be positive")
        self._attempts = attempts
        self._total_s = total_s
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()

    def __call__(self, call: Callable[[], T]) -> T:
        """Make a call.

        Raises:
            StoreUnavailable: the last attempt did; the message says how many there were.
            What else the call raises, at once.
        """
        started = self._clock()

        def pause(state: RetryCallState) -> float:
            # The exponent is bounded so that many attempts don't overflow a float.
            longest = min(self._longest_pause_s, self._first_pause_s * 2.0 ** min(state.attempt_number - 1, 64))
            drawn = self._rng.uniform(0.0, longest)
            error = state.outcome.exception() if state.outcome else None
            asked = error.retry_after_s if isinstance(error, StoreUnavailable) else None
            # Those who were told the same moment should not all come at it.
            return drawn if asked is None else asked + drawn

        def stop(state: RetryCallState) -> bool:
            late = self._clock() - started + state.upcoming_sleep > self._total_s
            return late or state.attempt_number >= self._attempts

        def give_up(state: RetryCallState) -> NoReturn:
            error = state.outcome.exception() if state.outcome else None
            raise StoreUnavailable(
                f"{error}; gave up after {state.attempt_number} attempts in {self._clock() - started:.1f} s"
            ) from error

        return Retrying(
            sleep=self._sleep,
            stop=stop,
            wait=pause,
            retry=retry_if_exception_type(StoreUnavailable),
            retry_error_callback=give_up,
        )(call)


class RetryStore(WrapperStore):
    """Retries StoreUnavailable, with exponential back-off and full jitter; every other error passes at once.

    Where the store says how long to wait, the pause is at least that long.

    AlreadyExists is never hidden. A conditional put whose answer was lost is sent again, and may then find
    its own object: it raises AlreadyExists though it has won. Only the caller can tell, by reading the object
    back (records of the log carry a write id for that).
    """

    def __init__(
        self,
        store: Store,
        *,
        attempts: int = 5,
        total_s: float = 30.0,
        first_pause_s: float = 0.1,
        longest_pause_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """Wrap a store.

        Args:
            store: the store to call.
            attempts: how often a call is made at most, the first time included.
            total_s: no pause begins that would end later than this many seconds after the call did. An
                attempt that is under way is not cut short.
            first_pause_s: the pause before attempt n + 1 is drawn evenly from 0 to this times 2^(n-1).
            longest_pause_s: bound on that product.
            clock: monotonic time in seconds.
            sleep: what pauses.
            rng: what draws the pauses; seed it to repeat them.

        Raises:
            InvalidArgument: a bound is not positive.
        """
        super().__init__(store)
        self._retry = Retries(
            attempts=attempts,
            total_s=total_s,
            first_pause_s=first_pause_s,
            longest_pause_s=longest_pause_s,
            clock=clock,
            sleep=sleep,
            rng=rng,
        )

    def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        """Return an object's bytes, or those of a range, with retries."""
        return self._retry(lambda: self._store.get(key, byte_range))

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        """Read a range into a buffer, with retries: see ReadsInto.get_into."""
        self._retry(lambda: read_into(self._store, key, byte_range, buffer))

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object, with retries; AlreadyExists may be for this call's own object (see the class)."""
        self._retry(lambda: self._store.put(key, data, if_absent=if_absent))

    def exists(self, key: str) -> bool:
        """Tell whether the object is there, with retries."""
        return self._retry(lambda: self._store.exists(key))

    def size(self, key: str) -> int:
        """Return the object's size, with retries."""
        return self._retry(lambda: self._store.size(key))

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over keys, with retries that go on after the last key: none is lost, none comes twice.

        The bounds hold for each step from one key to the next.
        """
        keys = self._retry(lambda: self._store.list(prefix, after))
        return self._resumed(keys, prefix, after)

    def delete(self, key: str) -> None:
        """Remove an object, with retries."""
        self._retry(lambda: self._store.delete(key))

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, by the store's clock, with retries: see Dated.modified."""
        return self._retry(lambda: modified(self._store, key))

    def local_path(self, key: str) -> Path | None:
        """Return the path of the object's file if the wrapped store has files: see LocalFiles.local_path."""
        return self._store.local_path(key) if isinstance(self._store, LocalFiles) else None

    def _resumed(self, keys: Iterator[str], prefix: str, after: str | None) -> Iterator[str]:
        """Yield the keys; a listing that breaks off is asked for anew, from the last key on."""
        current: Iterator[str] | None = keys
        last = after

        def step() -> str | None:
            nonlocal current
            try:
                if current is None:
                    current = self._store.list(prefix, last)
                return next(current, None)
            except StoreUnavailable:
                current = None
                raise

        while (key := self._retry(step)) is not None:
            last = key
            yield key
