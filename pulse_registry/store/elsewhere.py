"""Reading elsewhere, where a store has several roots: what is damaged, or seems to end early, is asked of the next one.

Whoever finds that out knows nothing of roots, and they know nothing of checks: this is how the one tells the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_damaged: ContextVar[int] = ContextVar("_damaged", default=0)
_all_roots: ContextVar[bool] = ContextVar("_all_roots", default=False)


@contextmanager
def read_elsewhere(damaged: int) -> Iterator[None]:
    """Let this thread's reads in the block go past the first copies, so many of which were damaged."""
    before = _damaged.set(damaged)
    try:
        yield
    finally:
        _damaged.reset(before)


def damaged_copies() -> int:
    """Return how many copies of what is being read were found to be damaged."""
    return _damaged.get()


@contextmanager
def asking_all_roots() -> Iterator[None]:
    """Let no root alone decide, in this thread's block, where a log ends: there is known to be more of it."""
    before = _all_roots.set(True)
    try:
        yield
    finally:
        _all_roots.reset(before)


def all_roots_asked() -> bool:
    """Return whether no root alone may decide where a log ends."""
    return _all_roots.get()
