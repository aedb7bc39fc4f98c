"""Streaming body of a put: an object that is uploaded while it is made, and whose first bytes are known last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

from pulse_registry.store.body import Buffer


class Growing(Sequence[Buffer]):
    """A body of a put: to most stores a sequence of buffers, and who looks at it waits until all of them are there.

    A store that can takes the `rest` as it comes, and asks for the `first` buffer at its end. What came is kept, so
    that a put can be repeated; an error in the making is raised at every try. For one thread at a time.

    Attributes:
        sent_at: when a store began to send it, by the clock; until then, when it was made.
    """

    def __init__(
        self, rest: Iterable[Buffer], first: Callable[[], Buffer], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Begin with nothing.

        Args:
            rest: makes all buffers but the first, which stay as they are.
            first: makes the first one; called once, after ``rest`` has ended.
            clock: time in seconds.
        """
        self.sent_at = clock()
        self._clock = clock
        self._more = iter(rest)
        self._make_first = first
        self._kept: list[Buffer] = []
        self._first: Buffer | None = None
        self._failure: BaseException | None = None
        self._sent = False

    def rest(self) -> Iterator[Buffer]:
        """Yield all buffers but the first, in order: those that have come at once, the others as they come."""
        at = 0
        while at < len(self._kept) or self._grow():
            yield self._kept[at]
            at += 1

    def first(self) -> Buffer:
        """Return the first buffer, once the rest has ended."""
        if self._first is None:
            for _ in self.rest():
                pass
            self._first = self._make_first()
            self.sending()
        return self._first

    def reaches(self, nbytes: int) -> bool:
        """Wait until so many bytes of the rest have come, or it ends; return whether they have."""
        for buffer in self.rest():
            nbytes -= memoryview(buffer).nbytes
            if nbytes <= 0:
                return True
        return False

    def sending(self) -> None:
        """Note that sending begins, the first time; a store calls it that does not wait for all of it."""
        if not self._sent:
            self._sent, self.sent_at = True, self._clock()

    def __iter__(self) -> Iterator[Buffer]:
        """Yield all buffers, the first one first."""
        yield self.first()
        yield from self._kept

    def __len__(self) -> int:
        """Return the number of buffers."""
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, at: int) -> Buffer: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Buffer]: ...
    def __getitem__(self, at: int | slice) -> Buffer | Sequence[Buffer]:
        """Return a buffer, or several."""
        return [*self][at]

    def _grow(self) -> bool:
        if self._failure is not None:
            raise self._failure
        try:
            buffer = next(self._more, None)
        except BaseException as failure:
            self._failure = failure  # an iterator that has raised looks as if it had ended
            raise
        if buffer is not None:
            self._kept.append(buffer)
        return buffer is not None
