"""A store that fails on purpose, by script and seed, to test what failures do to all that is above it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Literal

from pulse_registry.errors import InvalidArgument, StoreUnavailable
from pulse_registry.store.base import MOST_WHOLE_BYTES, Store, Verb
from pulse_registry.store.body import Body
from pulse_registry.store.checks import ByteRange
from pulse_registry.store.wrappers.wrapper import Listing, WrapperStore

FaultAction = Literal["fail_before", "fail_after", "flip_bit", "truncate"]


def lost_connection(verb: Verb, key: str) -> BaseException:
    """Return the error that a broken network gives."""
    return StoreUnavailable(f"injected fault: the connection was lost during {verb} of {key!r}")


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to fail, and when.

    Attributes:
        action: `fail_before`: raise, and nothing has happened. `fail_after`: act, then raise (the answer is
            lost; a `list` breaks off after some keys). `flip_bit`, `truncate`: change what `get` returns;
            never for others.
        verb: only calls of this verb; None for all.
        matches: only calls for which this returns true, given verb and key (the prefix for `list`).
        nth: only the n-th of the calls that the two above let through, counted from 1; None for each of them.
        probability: the chance that a call which fits does fail.
        times: fire at most so often; None for no bound.
        error: makes what is raised, given verb and key; may be any exception, to play a crash.
    """

    action: FaultAction
    verb: Verb | None = None
    matches: Callable[[Verb, str], bool] | None = None
    nth: int | None = None
    probability: float = 1.0
    times: int | None = None
    error: Callable[[Verb, str], BaseException] = lost_connection

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InvalidArgument: the fault could never fire as described.
        """
        if self.action in ("flip_bit", "truncate") and self.verb not in (None, "get"):
            raise InvalidArgument(f"a fault that changes what get returns can't be for {self.verb}")
        if (self.nth is not None and self.nth < 1) or (self.times is not None and self.times < 1):
            raise InvalidArgument("nth and times count from 1")
        if not 0.0 <= self.probability <= 1.0:
            raise InvalidArgument(f"{self.probability} is not a probability")

    def fits(self, verb: Verb, key: str) -> bool:
        """Tell whether the fault is about such a call at all."""
        if self.action in ("flip_bit", "truncate") and verb != "get":
            return False
        return (self.verb is None or self.verb == verb) and (self.matches is None or self.matches(verb, key))


class FaultStore(WrapperStore):
    """Injects faults into calls of a store; the first fault of each action that fires is the one that acts.

    Deterministic: the same faults, seed and order of calls fail in the same way. Each fault has its own
        randomness,
    drawn once for every call that fits, so that adding a fault changes no other.

    Attributes:
        fired: (action, verb, key) of each fault that fired, in order.
    """

    def __init__(self, store: Store, faults: Sequence[Fault], seed: int = 0) -> None:
        """Wrap a store.

        Args:
            store: the store that does the work.
            faults: what goes wrong.
            seed: of all randomness; print it when a test fails.
        """
        super().__init__(store)
        self._lock = threading.Lock()
        self._triggers = tuple(_Trigger(fault, f"{seed}:{number}") for number, fault in enumerate(faults))
        self.fired: list[tuple[FaultAction, Verb, str]] = []

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, changed if a fault says so."""
        fires = self._begin("get", key)
        data = self._store.get(key, byte_range, max_bytes=max_bytes)
        if "flip_bit" in fires and data:
            position = fires["flip_bit"].draw(8 * len(data))
            changed = bytearray(data)
            changed[position // 8] ^= 1 << position % 8
            data = bytes(changed)
        if "truncate" in fires and data:
            data = data[: fires["truncate"].draw(len(data))]
        _end(fires, "get", key)
        return data

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object, or fail before or after it."""
        fires = self._begin("put", key)
        self._store.put(key, data, if_absent=if_absent)
        _end(fires, "put", key)

    def exists(self, key: str) -> bool:
        """Tell whether the object is there, or fail."""
        fires = self._begin("exists", key)
        found = self._store.exists(key)
        _end(fires, "exists", key)
        return found

    def size(self, key: str) -> int:
        """Return the object's size, or fail."""
        fires = self._begin("size", key)
        size = self._store.size(key)
        _end(fires, "size", key)
        return size

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over keys, or fail at the call, or break off after some of them."""
        return self._listed(self._store.list, prefix, after)

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over folders, or fail as `list` does, which is the same request."""
        return self._listed(self._store.folders, prefix, after)

    def delete(self, key: str) -> None:
        """Remove an object, or fail before or after it."""
        fires = self._begin("delete", key)
        self._store.delete(key)
        _end(fires, "delete", key)

    def modified(self, key: str) -> datetime:
        """Return when the object was last written, or fail as `size` does, which is the same request."""
        fires = self._begin("size", key)
        written = super().modified(key)
        _end(fires, "size", key)
        return written

    def _listed(self, listing: Listing, prefix: str, after: str | None) -> Iterator[str]:
        fires = self._begin("list", prefix)
        keys = listing(prefix, after)
        return _broken_off(keys, fires["fail_after"], prefix) if "fail_after" in fires else keys

    def _begin(self, verb: Verb, key: str) -> dict[FaultAction, _Trigger]:
        """Return the faults of this call by action, and raise those that come before it."""
        fires: dict[FaultAction, _Trigger] = {}
        with self._lock:
            for trigger in self._triggers:
                action = trigger.fault.action
                if trigger.pull(verb, key) and action not in fires:
                    fires[action] = trigger
                    self.fired.append((action, verb, key))
        if "fail_before" in fires:
            raise fires["fail_before"].fault.error(verb, key)
        return fires


class _Trigger:
    """A fault with its count of calls and its randomness."""

    def __init__(self, fault: Fault, seed: str) -> None:
        self.fault = fault
        self._random = random.Random(seed)
        self._seen = 0
        self._fired = 0

    def pull(self, verb: Verb, key: str) -> bool:
        """Count a call, and tell whether the fault fires for it."""
        fault = self.fault
        if not fault.fits(verb, key):
            return False
        self._seen += 1
        lucky = self._random.random() < fault.probability
        due = fault.nth is None or fault.nth == self._seen
        if not (lucky and due) or (fault.times is not None and self._fired >= fault.times):
            return False
        self._fired += 1
        return True

    def draw(self, bound: int) -> int:
        """Return a number in [0, bound)."""
        return self._random.randrange(bound)


def _end(fires: dict[FaultAction, _Trigger], verb: Verb, key: str) -> None:
    """Lose the answer, if a fault says so."""
    if "fail_after" in fires:
        raise fires["fail_after"].fault.error(verb, key)


def _broken_off(keys: Iterator[str], trigger: _Trigger, prefix: str) -> Iterator[str]:
    """Yield some of the keys, at least one short of all, and raise."""
    whole = tuple(keys)
    yield from islice(whole, trigger.draw(max(1, len(whole))))
    raise trigger.fault.error("list", prefix)
