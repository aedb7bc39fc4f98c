"""A store that tries again when the one below is unavailable for a moment.

Time bounds it, not a count. Where one thing that repeats lies within another, as the parts of an upload do, the inner
one spends the time: what it gives up is `lasting`, and passes.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Final, NoReturn, TypeVar, cast

from tenacity import RetryCallState, Retrying, retry_if_exception

from pulse_registry.errors import Behind, InvalidArgument, StoreUnavailable
from pulse_registry.store.base import MOST_WHOLE_BYTES, Store
from pulse_registry.store.body import Body, Buffer
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.wrappers.wrapper import Listing, WrapperStore

T = TypeVar("T")

TOTAL_S: Final = 30.0
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
_THROTTLED: Final = 10.0
"""So many times longer is the first pause where the store is asked too much."""
_SILENT_S: Final = 2.0
"""A wait that is longer is told of, once in ``_TOLD_S`` seconds."""
_TOLD_S: Final = 10.0

_logger = logging.getLogger(__name__)
_at_most: ContextVar[float] = ContextVar("_at_most", default=math.inf)


@contextmanager
def retrying_at_most(seconds: float) -> Iterator[None]:
    """Let this thread's calls in the block be repeated for less long than usual; 0: each is made once.

    For what is not worth a long wait, and for what follows on a failure that was waited for already.
    """
    before = _at_most.set(min(seconds, _at_most.get()))
    try:
        yield
    finally:
        _at_most.reset(before)


class RetryPolicy:
    """Makes a call until it succeeds, fails for good, or the time is over: what RetryStore does for each verb.

    The time counts from the call's first failure: what took minutes, and fails at its end, has all of it.
    """

    def __init__(
        self,
        *,
        total_s: float = TOTAL_S,
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """Set the bounds.

        Args:
            total_s: a call is made for the last time when so many seconds are over since it failed first; 0: it is
                made once. An attempt that is under way is not cut short.
            first_pause_s: the pause before attempt n + 1 is drawn evenly from 0 to this times 2^(n-1); ten times that
                where the store is asked too much.
            longest_pause_s: bound on that product.
            clock: monotonic time in seconds.
            sleep: what pauses.
            rng: what draws the pauses; seed it to repeat them.

        Raises:
            InvalidArgument: a pause is not positive, or the time is negative.
        """
        if min(first_pause_s, longest_pause_s) <= 0 or total_s < 0:
            raise InvalidArgument("first_pause_s and longest_pause_s must be positive, total_s 0 or more")
        self._total_s = total_s
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._clock = clock
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._quiet_until = -math.inf

    def __call__(self, call: Callable[[], T]) -> T:
        """Make a call.

        Raises:
            StoreUnavailable: the last attempt did; the message says how many there were. It is `lasting`.
            What else the call raises, at once; also a StoreUnavailable that is `lasting`.
        """
        try:
            return call()  # as nearly all end here, what repeats is only made for those that don't
        except StoreUnavailable as error:
            if error.lasting:
                raise
            failure = error
        return self._again(call, failure)

    def _again(self, call: Callable[[], T], first: StoreUnavailable) -> T:
        """Go on after a call's first failure."""
        budget_s = min(self._total_s, _at_most.get())
        failures = [first]
        began: float | None = None
        over = last = False

        def attempt() -> T:
            if failures:
                raise failures.pop()  # the attempt that was made already
            return call()

        def pause(state: RetryCallState) -> float:
            nonlocal began, over, last
            now = self._clock()
            began = now if began is None else began
            left = began + budget_s - now
            seconds = self._drawn(state.attempt_number, _failure(state))
            over, last = last or left <= 0, seconds >= left
            if not over and now - began >= _SILENT_S:
                self._tell(now, left, _failure(state))
            return max(0.0, min(seconds, left))

        def give_up(state: RetryCallState) -> NoReturn:
            failure = _failure(state)
            tried = f"gave up after {state.attempt_number} attempts in {self._clock() - (began or 0.0):.1f} s"
            kind = Behind if isinstance(failure, Behind) else StoreUnavailable
            error = kind(f"{failure}; {tried}" if state.attempt_number > 1 else str(failure))
            error.key, error.retry_after_s, error.throttled = failure.key, failure.retry_after_s, failure.throttled
            error.lasting = True
            raise error from failure

        return Retrying(
            sleep=self._sleep,
            stop=lambda _: over,
            wait=pause,
            retry=retry_if_exception(lambda error: isinstance(error, StoreUnavailable) and not error.lasting),
            retry_error_callback=give_up,
        )(attempt)

    def _drawn(self, attempt: int, failure: StoreUnavailable) -> float:
        """Return how long to pause after an attempt: at random, since those who fail together should not return so."""
        first = self._first_pause_s * (_THROTTLED if failure.throttled else 1.0)
        # The exponent is bounded so that many attempts don't overflow a float.
        longest = min(self._longest_pause_s, first * 2.0 ** min(attempt - 1, 64))
        return (failure.retry_after_s or 0.0) + self._rng.uniform(0.0, longest)

    def _tell(self, now: float, left: float, failure: StoreUnavailable) -> None:
        if now >= self._quiet_until:
            self._quiet_until = now + _TOLD_S
            _logger.warning("%s; it is tried again for up to %.0f s", failure, left)


def _failure(state: RetryCallState) -> StoreUnavailable:
    """Return what an attempt raised: nothing else is tried again."""
    return cast("StoreUnavailable", state.outcome.exception() if state.outcome is not None else None)


class RetryStore(WrapperStore):
    """Retries StoreUnavailable, with exponential back-off and full jitter; every other error passes at once.

    Where the store says how long to wait, the pause is at least that long, or all that is left.

    AlreadyExists is never hidden. A conditional put whose answer was lost is sent again, and may then find
    its own object: it raises AlreadyExists though it has won. Only the caller can tell, by reading the object
    back (records of the log carry a write id for that).
    """

    def __init__(self, store: Store, policy: RetryPolicy | None = None) -> None:
        """Wrap a store; calls are made again as ``policy`` says, or as it says by default."""
        super().__init__(store)
        self._retry = policy or RetryPolicy()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range, with retries."""
        return self._retry(lambda: self._store.get(key, byte_range, max_bytes=max_bytes))

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        """Read a range into a buffer, with retries: see Store.get_into."""
        self._retry(lambda: self._store.get_into(key, byte_range, buffer))

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
        return self._resumed(self._store.list, prefix, after)

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the folders behind a prefix, with retries as those of `list`."""
        return self._resumed(self._store.folders, prefix, after)

    def delete(self, key: str) -> None:
        """Remove an object, with retries."""
        self._retry(lambda: self._store.delete(key))

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, by the store's clock, with retries: see Store.modified."""
        return self._retry(lambda: self._store.modified(key))

    def _resumed(self, listing: Listing, prefix: str, after: str | None) -> Iterator[str]:
        """List, from the call on; a listing that breaks off is asked for anew, from the last key on."""
        return self._steps(self._retry(lambda: listing(prefix, after)), listing, prefix, after)

    def _steps(self, keys: Iterator[str], listing: Listing, prefix: str, after: str | None) -> Iterator[str]:
        current: Iterator[str] | None = keys
        last = after

        def step() -> str | None:
            nonlocal current
            try:
                if current is None:
                    current = listing(prefix, last)
                return next(current, None)
            except StoreUnavailable:
                current = None
                raise

        while (key := self._retry(step)) is not None:
            last = key
            yield key
