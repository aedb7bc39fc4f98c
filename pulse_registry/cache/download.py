"""Download of an object into the node's cache: ranges in parallel, which other processes read as they land."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future

from pulse_registry.cache.partial_object import PartialObject
from pulse_registry.errors import PulseError, StoreUnavailable
from pulse_registry.process.scratch import Scratch
from pulse_registry.store import Store


class Download:
    """Downloads an object to its locked partial file, whether or not somebody waits for it.

    Attributes:
        key: of the object, or of the one that it is a piece of.
        part: where it lands.
        whole: whether what came is what was committed, once that is known; or the error that it ended with.
    """

    def __init__(
        self,
        part: PartialObject,
        key: str,
        store: Store,
        pool: Executor,
        scratch: Scratch,
        ended: Callable[[PartialObject, str, bool | BaseException], None],
        begin: int = 0,
    ) -> None:
        """Begin; ``ended`` is called once the part is closed: with it, the key, and what ``whole`` will be.

        A piece of an object begins at byte ``begin`` of what lies under the key.
        """
        self.part = part
        self.whole: Future[bool] = Future()
        self.key = key
        self._at = begin
        self._store, self._pool, self._scratch, self._ended = store, pool, scratch, ended
        self._mutex = threading.Lock()
        self._left = part.count
        self._failure: BaseException | None = None
        self._begun: set[int] = set()
        self._ranges: list[Future[None]] = [Future() for _ in range(part.count)]
        for number in range(part.count):
            pool.submit(self._land, number)

    @property
    def has_failed(self) -> bool:
        """Whether the download has failed; it ends as soon as the ranges under way have."""
        return self._failure is not None

    def wait(self, start: int, stop: int) -> None:
        """Wait until these bytes have landed; ranges of them that nobody has begun are fetched here and now.

        Raises:
            NotFound, CorruptObject, AccessDenied, StoreUnavailable: as the store.
            OSError: the disk did not take them.
        """
        numbers = self.part.numbers(start, stop)
        for number in numbers:
            self._land(number)
        for number in numbers:
            self._ranges[number].result()

    def stop(self) -> None:
        """Fetch no more ranges."""
        self._failure = self._failure or StoreUnavailable(f"{self.key}: its download was ended, as the registry was")

    def _land(self, number: int) -> None:
        """Fetch a range, unless that has begun."""
        with self._mutex:
            if number in self._begun:
                return
            self._begun.add(number)
        try:
            self._fetch(number)
        except BaseException as failure:
            self._failure = self._failure or failure
            self._ranges[number].set_exception(failure)
            if not isinstance(failure, PulseError | OSError):
                raise
        else:
            self._ranges[number].set_result(None)
        finally:
            with self._mutex:
                self._left -= 1
                last = not self._left
            if last:
                # The bytes can be read before they have been checked as a whole: readers check what they use.
                self._pool.submit(self._end)

    def _fetch(self, number: int) -> None:
        if self._failure is not None:
            raise self._failure
        start, stop = self.part.span(number)
        if not (self.part.resumed and self.part.has(start, stop)):
            data = self._scratch.of(stop - start)
            self._store.get_into(self.key, (self._at + start, self._at + stop), data)
            self.part.write(number, data)

    def _end(self) -> None:
        """Name the object if it is whole; what came in vain is removed, what another may go on with stays."""
        try:
            if self._failure is not None:
                if not (isinstance(self._failure, StoreUnavailable) and self.part.progress()):
                    self.part.remove()
                raise self._failure
            whole = self.part.check()
            if whole:
                self.part.name()
            else:
                self.part.remove()
        except BaseException as failure:
            self._close(failure)
            self.whole.set_exception(failure)
            raise
        self._close(whole)
        self.whole.set_result(whole)

    def _close(self, whole: bool | BaseException) -> None:
        self.part.close()
        self._ended(self.part, self.key, whole)
