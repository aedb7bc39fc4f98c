"""Copies stored objects from a run's source to its copy: many at a time, each checked, within a bound of memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pulse_registry.bases.sharing import seconds_to_keep
from pulse_registry.errors import AlreadyExists, Conflict, CorruptObject, NotFound, PulseError, UnsupportedFormat
from pulse_registry.format.patch_parts import Stored
from pulse_registry.mirror.lanes import Lanes
from pulse_registry.mirror.needs import Document, Item, Unit, items_of
from pulse_registry.mirror.rate import Rate
from pulse_registry.mirror.transfer import AHEAD, PIECE, Damaged, Transfer
from pulse_registry.process.parallel import end, results
from pulse_registry.store import Body, Store
from pulse_registry.store.verified_read import TRIES, verified
from pulse_schemas import base_of

_AHEAD_BYTES: Final = (AHEAD + 1) * PIECE
PART_BYTES: Final = 8 << 20
"""Of a bucket that copies go to: what is larger goes up in parts of it, of which a put holds five."""
_PARTS_BYTES: Final = 5 * PART_BYTES
LOOK_S: Final = 30.0
"""While objects are on their way, which may take hours: how often the mirror looks after what can't wait for them."""
SKIPPED: Final = (NotFound, CorruptObject, UnsupportedFormat)
"""Of the source's objects: nothing is wrong with the stores, and the others can go on."""


@dataclass(slots=True)
class Tally:
    """What was done and not told yet; counted under a lock.

    Attributes:
        objects, nbytes: sent.
        present: objects that were there already.
    """

    objects: int = 0
    nbytes: int = 0
    present: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def sent(self, nbytes: int) -> None:
        """Count an object that was sent."""
        with self.lock:
            self.objects += 1
            self.nbytes += nbytes

    def found(self) -> None:
        """Count an object that was there."""
        with self.lock:
            self.present += 1

    def taken(self) -> tuple[int, int, int]:
        """Return objects, bytes and objects that were there, since the last call."""
        with self.lock:
            counts = self.objects, self.nbytes, self.present
            self.objects = self.nbytes = self.present = 0
        return counts


class Copier:
    """Copies units of one run; for any threads but its workers.

    Attributes:
        tally: what was done.
    """

    def __init__(
        self,
        source: Store,
        destination: Store,
        root: Store,
        run: str,
        lanes: Lanes,
        *,
        verify: bool,
        listed: Collection[str],
    ) -> None:
        """Prepare; no I/O yet.

        Args:
            source, destination: scoped to the run; root: in which the destination lies, and shared bases.
            run: its name.
            lanes: threads, memory and rate.
            verify: read what is there back, and replace it if it is damaged; else its size is enough.
            listed: keys of the run at which something was seen to lie.
        """
        self.tally = Tally()
        self._source, self._destination, self._root, self._run = source, destination, root, run
        self._lanes = lanes
        self._verify, self._listed = verify, listed

    def begin(self, unit: Unit) -> Copying:
        """Begin to copy a unit."""
        try:
            base = base_of(unit.key)
            wait_s = 0.0 if base is None else seconds_to_keep(self._root, self._run, base)
            if wait_s:
                message = (
                    f"{unit.key}: no run at the copy needed this base, so that it is closed there, and its files may "
                    f"be about to be deleted. The run refers to it now: mirror it again in {wait_s / 60:.0f} minutes"
                )
                return Copying(unit, (), Conflict(message))
            items = [*items_of(self._source, unit)]
        except SKIPPED as error:
            return Copying(unit, (), error)
        return Copying(unit, [self._lanes.workers.submit(self._copy, item) for item in items])

    def _copy(self, item: Item) -> None:
        base = base_of(item.key) is not None
        with self._lanes.alone(item.key) if base else nullcontext():  # runs may share it
            self._copy_alone(item, look=base or item.key in self._listed)

    def _copy_alone(self, item: Item, *, look: bool) -> None:
        whole = self._is_whole(item) if look else None
        if whole:
            self.tally.found()
            return
        if isinstance(item, Document):
            read = partial(self._source.get, item.key, max_bytes=item.most)
            data = verified(read, bytes.fromhex(item.blake3), f"{item.key}: the BLAKE3 of its bytes")
            self._replace(item.key, damaged=whole is False)
            with suppress(AlreadyExists):  # of one hash there are only these bytes
                self._put(item.key, data)
            self.tally.sent(len(data))
            return
        if self._send(item, damaged=whole is False):
            self.tally.sent(item.size)
        else:
            self.tally.found()

    def _send(self, item: Stored, *, damaged: bool) -> bool:
        """Send an object; tell whether it was not there. What was damaged on its way here is fetched again."""
        seen = set[bytes]()
        while True:
            try:
                self._replace(item.key, damaged=damaged)
                with self._lanes.memory(min(item.size, _AHEAD_BYTES) + min(item.size, _PARTS_BYTES)):
                    self._put(item.key, Transfer(self._source, item, self._lanes.readers, self._lanes.rate))
                return True
            except AlreadyExists:
                if self._is_whole(item):
                    return False  # another mirror's, or this one's, whose answer was lost
                damaged = True
            except Damaged as error:
                if error.found in seen or len(seen) + 1 >= TRIES:
                    raise
                seen.add(error.found)

    def _put(self, key: str, data: Body) -> None:
        if base_of(key) is None:
            self._destination.put(key, data, if_absent=True)
        else:
            self._root.put(key, data, if_absent=True)

    def _replace(self, key: str, *, damaged: bool) -> None:
        """Delete what is damaged at the copy: nothing is ever written over, and nobody needs rights to do so."""
        if damaged:
            (self._destination if base_of(key) is None else self._root).delete(key)

    def _is_whole(self, item: Item) -> bool | None:
        """Tell whether an object of the copy is whole, by its size or, to verify, its bytes; None: it is not there."""
        try:
            if isinstance(item, Document):
                read = partial(self._destination.get, item.key, max_bytes=item.most)
                verified(read, bytes.fromhex(item.blake3), f"{item.key}: the BLAKE3 of its bytes")
                return True
            if self._destination.size(item.key) != item.size:
                return False
            if self._verify:
                with self._lanes.memory(min(item.size, _AHEAD_BYTES)):
                    Transfer(self._destination, item, self._lanes.readers, Rate(None)).check()
        except NotFound:
            return None
        except CorruptObject:
            return False
        return True


@dataclass(slots=True)
class Copying:
    """A unit that is being copied."""

    unit: Unit
    _futures: Sequence[Future[None]]
    _error: PulseError | None = None

    @property
    def is_over(self) -> bool:
        """Whether `outcome` would not wait."""
        return all(future.done() for future in self._futures)

    def outcome(self, meanwhile: Callable[[], object] = lambda: None) -> PulseError | None:
        """Wait for it, and return why it can't be copied; None: it is there, whole.

        Args:
            meanwhile: is called now and then while it is not over.

        Raises:
            AccessDenied, StoreUnavailable: a store failed, which says nothing of the unit.
        """
        if self._error is None:
            try:
                self._wait(meanwhile)
                results(self._futures)
            except SKIPPED as error:
                self._error = error
        return self._error

    def end(self) -> None:
        """Cancel what has not begun, and wait for the rest."""
        end(self._futures)

    def _wait(self, meanwhile: Callable[[], object]) -> None:
        while True:
            found = wait(self._futures, LOOK_S, FIRST_EXCEPTION)
            if not found.not_done or any(one.cancelled() or one.exception() is not None for one in found.done):
                return
            meanwhile()
