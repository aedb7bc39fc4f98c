"""Reading of a log in order, record by record, and many at a time where it turns out to be long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from itertools import count
from typing import Final, TypeVar

from pulse_registry.errors import PulseError
from pulse_registry.process.parallel import ParallelMap

_ONE_BY_ONE: Final = 16
"""So many records are read one after the other when a log is opened: most tails are short, or long."""
_AHEAD: Final = 16
R = TypeVar("R")


def follow(read: Callable[[int], R | None], first: int, threads: Callable[[int, str], Executor] | None) -> Iterator[R]:
    """Yield the records from one on, in order, until one is not there; an error is raised in its place.

    Args:
        read: returns a record by its number, or None.
        first: the number of the first one.
        threads: makes an executor, of so many threads and their name's beginning, to read many at a time after the
            first ones, by up to 15 more that are not there; None: one after the other.
    """
    for seq in count(first):
        if threads is not None and seq == first + _ONE_BY_ONE:
            yield from _read_ahead(read, seq, threads)
            return
        found = read(seq)
        if found is None:
            return
        yield found


def _read_ahead(read: Callable[[int], R | None], first: int, threads: Callable[[int, str], Executor]) -> Iterator[R]:
    def attempt(seq: int) -> R | PulseError | None:
        try:
            return read(seq)
        except PulseError as error:
            return error

    with threads(_AHEAD, "pulse-log") as pool:
        for start in count(first, _AHEAD):
            for found in ParallelMap(pool)(attempt, range(start, start + _AHEAD)):
                if found is None:
                    return
                if isinstance(found, PulseError):
                    raise found
                yield found
