"""Several roots as one store: read from the first that answers and is not known to be behind, written at the home.

A reader of the nearest root pays no request to a far one, but where the near one can't say: it does not answer, it has
not come as far as another root was seen to be, it lacks an object that a record names, or holds a damaged one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

from pulse_registry.errors import (
    AccessDenied,
    Conflict,
    CorruptObject,
    InvalidArgument,
    NotFound,
    StoreUnavailable,
    UnsupportedFormat,
)
from pulse_registry.format import keys
from pulse_registry.log.documents import read_document
from pulse_registry.log.home import proved_move
from pulse_registry.roots.ends import Ends
from pulse_registry.roots.home import find_home
from pulse_registry.roots.presigner import NearestPresigner
from pulse_registry.roots.root import FAILURES, PATIENCE_S, Failure, Root
from pulse_registry.store import MOST_WHOLE_BYTES, Body, Buffer, ByteRange, Presigner, Store
from pulse_registry.store.elsewhere import all_roots_asked, damaged_copies
from pulse_registry.store.roots import Roots
from pulse_registry.store.wrappers.retry import retrying_at_most
from pulse_registry.store.wrappers.run import RunStore
from pulse_registry.store.wrappers.wrapper import Listing
from pulse_schemas import BASES

T = TypeVar("T")
_OWN = (keys.LEASES, keys.REPORTS)
"""What each root has for itself: who reads there."""
_MOVE = b'"kind":"move"'
"""In a record that moves the run. Metadata may say the same; then all roots are asked for the next record, too."""
_NAMED = (keys.OBJECTS, keys.LAYOUTS, keys.OUTER + keys.OBJECTS)
"""What a record names: it is there, or was."""


class NearestStore(Store):
    """A Store over several roots, the nearest first. Thread-safe.

    Whose word counts:

    - A record is looked for at one root after the other. That there is none, a root knows that has the one before it.
      If that one moved the run, the root knows that can prove to be its home; else all are asked.
    - What a record names (objects, layouts) is gone only if no root has it. What was read of one and is damaged is read
      of the next (``read_elsewhere``).
    - Of all else (hints, snapshots, listings) the first root that answers decides. Leases and workers' reports are
      written there.

    A root that fails is left alone for a while (`Root`). What else is written goes to the run's home (`find_home`);
    from then on this store reads the run there, too, and nowhere else, until it moves on.
    """

    def __init__(
        self,
        roots: Sequence[Store],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take the roots' stores; no I/O yet.

        Raises:
            InvalidArgument: there is none, one comes twice, or one is a service.
        """
        urls = [store.url for store in roots]
        if not urls or len(set(urls)) < len(urls):
            raise InvalidArgument(f"{' '.join(urls) or 'nothing'} is no list of roots: each comes once")
        for store in roots:
            if store.gateway() is not None:
                raise InvalidArgument(f"{store.url} is a service: give it a list of roots, and open it alone")
        self.url = " ".join(urls)
        self._stores = tuple(roots)
        self._roots = tuple(Root(store, clock=clock, sleep=sleep) for store in roots)
        self._ends = Ends()
        self._lock = threading.Lock()
        self._homes: dict[str, int] = {}
        self._finding: dict[str, threading.Lock] = {}

    def __repr__(self) -> str:
        """Show the roots."""
        return f"{type(self).__name__}({[root.url for root in self._roots]!r})"

    def roots(self) -> Roots[Store]:
        """Return this store, which has several."""
        return self

    def presigner(self) -> Presigner | None:
        """Return what signs requests to the root that a run is read from, and to its home; None if one root can't."""
        signers = [signer for store in self._stores if (signer := store.presigner()) is not None]
        return NearestPresigner(signers, self.nearest, self._home) if len(signers) == len(self._stores) else None

    @property
    def stores(self) -> Sequence[Store]:
        """The roots, each by itself, the nearest first; retried."""
        return [root.store for root in self._roots]

    def nearest(self, run: str) -> int:
        """Return which of the roots a run is read from now: the first that answers and is not known to be behind."""
        log = f"{run}/{keys.LOG}".rstrip("/")
        order, newest = self._order(run), self._ends.newest(log)
        return next((number for number in order if self._ends.of(log, number) == newest), order[0])

    def write_at_home(self, run: str) -> None:
        """Find a run's home (`find_home`), and read and write the run there alone from now on.

        Raises:
            As ``find_home``.
        """
        self._home(run)

    def home(self, run: str) -> Store:
        """Return the root that a run is written at, by itself, retried; found as by ``write_at_home``.

        Raises:
            As ``find_home``.
        """
        return self._roots[self._home(run)].store

    # -- Store: reads ----------------------------------------------------------------------------------------------

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range, from the first root that has it: see Store.get."""
        return self._read(key, lambda store: store.get(key, byte_range, max_bytes=max_bytes))

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        """Read a range into a buffer, from the first root that has it: see Store.get_into."""
        self._read(key, lambda store: store.get_into(key, byte_range, buffer))

    def size(self, key: str) -> int:
        """Return the size of an object at the first root that has it: see Store.size."""
        return self._read(key, lambda store: store.size(key))

    def modified(self, key: str) -> datetime:
        """Return when an object was last written, by the clock of the first root that has it: see Store.modified."""
        return self._read(key, lambda store: store.modified(key))

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the keys of the first root that answers: see Store.list."""
        return self._listed(prefix, after, lambda store: store.list)

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Iterate over the folders of the first root that answers: see Store.folders."""
        return self._listed(prefix, after, lambda store: store.folders)

    # -- Store: writes ---------------------------------------------------------------------------------------------

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write a lease at the first root that answers, and what is the run's at its home: see Store.put."""
        if _below_run(key).startswith(_OWN):
            self._ask(self._order(key), lambda store: store.put(key, data, if_absent=if_absent), lambda _: True)
        else:
            self._home_of(key).put(key, data, if_absent=if_absent)

    def delete(self, key: str) -> None:
        """Remove a lease from the first root that answers, and what is the run's from its home: see Store.delete."""
        if _below_run(key).startswith(_OWN):
            self._ask(self._order(key), lambda store: store.delete(key), lambda _: True)
        else:
            self._home_of(key).delete(key)

    # -- one root after the other ----------------------------------------------------------------------------------

    def _read(self, key: str, call: Callable[[Store], T]) -> T:
        order, name = self._order(key), _below_run(key)
        skipped = damaged_copies() % len(order)
        order = [*order[skipped:], *order[:skipped]]
        seq = keys.record_seq(name.removeprefix(keys.OUTER))
        if seq is not None:
            return self._read_record(key, seq, order, call)
        if name.startswith(_NAMED) or key.startswith(BASES):
            return self._ask(order, call, lambda _: False)[1]
        return self._ask(order, call, lambda _: True)[1]

    def _read_record(self, key: str, seq: int, order: Sequence[int], call: Callable[[Store], T]) -> T:
        log, run = key.rpartition("/")[0], key.partition("/")[0]
        try:
            number, answer = self._ask(order, call, lambda root: len(order) == 1 or self._ends_before(log, root, seq))
        except NotFound:
            if not (len(order) == 1 < len(self._roots) and self._ends.may_go_on_elsewhere(log)):
                raise
            if self._left(run) == order[0]:
                raise
            return self._read_record(key, seq, self._order(key), call)
        self._ends.shown(log, number, seq)
        if isinstance(answer, bytes) and _MOVE in answer:
            self._ends.moved(log, seq)
        return answer

    def _ask(self, order: Sequence[int], call: Callable[[Store], T], decides: Callable[[int], bool]) -> tuple[int, T]:
        """Return the first root that has what is asked for, and its answer.

        Args:
            order: of the roots.
            call: asks one of them.
            decides: tells whether it is nowhere if a root has it not; else the others are asked, but for those that
                failed a short while ago: then nobody can say.
        """
        missing: NotFound | None = None
        failure: Failure | None = None
        for number in order:
            root = self._roots[number]
            if missing is not None and root.rests:
                failure = failure or StoreUnavailable(f"{missing}, and {root.url} has just failed: try again")
                continue
            try:
                return number, root.ask(call)
            except FAILURES as error:
                failure = failure or error
            except NotFound as error:
                if decides(number):
                    raise
                missing = missing or error
        if failure is not None:
            raise _again(failure) from failure
        raise missing or NotFound(f"nothing was asked of {self.url}")

    def _ends_before(self, log: str, number: int, seq: int) -> bool:
        """Tell whether a root that has no record ``seq`` may say so for all: it has the one before, and no other more.

        What lies further on than the next record is read ahead of those before it, and left where they end.
        """
        newest = self._ends.newest(log)
        if seq == 0 or seq <= newest or all_roots_asked():
            return False
        if self._ends.may_go_on_elsewhere(log):
            return self._led_to(log, newest, number)
        if seq > newest + 1 or self._ends.of(log, number) == newest:
            return True
        last = f"{log}/{keys.record_key(newest).removeprefix(keys.LOG)}"
        try:
            self._roots[number].ask(lambda store: store.size(last))
        except (NotFound, *FAILURES):
            return False
        self._ends.shown(log, number, newest)
        return True

    def _led_to(self, log: str, seq: int, number: int) -> bool:
        """Tell whether a move, the newest record, led to a root, as that proves: the log goes on there or nowhere."""
        if self._ends.goes_on_at(log) == number:
            return True
        run, _, folder = log.partition("/")
        record = f"{folder}/{keys.record_key(seq).removeprefix(keys.LOG)}"

        def told(store: Store) -> bool:
            scoped = RunStore(store, run)
            move = proved_move(scoped, run)
            return move is not None and move.encode() in read_document(scoped, record)

        try:
            led = self._roots[number].ask(told)
        except (NotFound, CorruptObject, UnsupportedFormat, *FAILURES):
            return False
        if led:
            self._ends.leads(log, seq, number)
        return led

    def _listed(self, prefix: str, after: str | None, listing: Callable[[Store], Listing]) -> Iterator[str]:
        def begin(store: Store) -> tuple[str | None, Iterator[str]]:
            found = listing(store)(prefix, after)
            return next(found, None), found

        _, (first, rest) = self._ask(self._order(prefix), begin, lambda _: True)
        return _keys(first, rest)

    def _order(self, key: str) -> Sequence[int]:
        """Return the roots to ask for keys that begin so: the nearest first, and at last those that have failed."""
        home = self._homes.get(key.partition("/")[0])
        if home is not None:
            return (home,)
        return sorted(range(len(self._roots)), key=lambda number: self._roots[number].rests)

    def _home(self, run: str) -> int:
        with self._lock:
            found, finding = self._homes.get(run), self._finding.setdefault(run, threading.Lock())
        if found is not None:
            return found
        with finding:  # of this run alone: a root that is slow to say keeps writers of others waiting for nothing
            found = self._homes.get(run)
            if found is None:
                try:
                    with retrying_at_most(PATIENCE_S):
                        found = self._homes[run] = find_home([root.store for root in self._roots], run)
                except (StoreUnavailable, AccessDenied) as error:
                    raise _again(error) from error
            return found

    def _left(self, run: str) -> int | None:
        """Find the home anew of a run that has moved; None if there is none here: then it is read anywhere."""
        with self._lock:
            self._homes.pop(run, None)
        with suppress(Conflict):
            return self._home(run)
        return None

    def _home_of(self, key: str) -> Store:
        if key.startswith(BASES):
            raise InvalidArgument(f"{key!r} is a shared base's, which each root has for itself: open one alone")
        return self._stores[self._home(key.partition("/")[0])]


def _below_run(key: str) -> str:
    return key.partition("/")[2]


def _keys(first: str | None, rest: Iterator[str]) -> Iterator[str]:
    """Yield the keys of a listing that has begun; what breaks off is to be asked for anew."""
    if first is None:
        return
    yield first
    try:
        yield from rest
    except StoreUnavailable as error:
        raise _again(error) from error


def _again(failure: Failure) -> Failure:
    """Return an error that may be tried again: what one root could not do in time, it or another one may do later."""
    if not isinstance(failure, StoreUnavailable):
        return failure
    error = StoreUnavailable(str(failure))
    error.key, error.retry_after_s, error.throttled = failure.key, failure.retry_after_s, failure.throttled
    return error
