"""Patience of commands that follow something: a store that is away is told of, and asked again after a pause."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from pulse_registry.errors import StoreUnavailable
from pulse_registry.quoting import say

PAUSE_S: Final = 5.0
"""Below it a store's own calls were repeated for half a minute already."""

T = TypeVar("T")


def patiently(begin: Callable[[], Iterator[T]], sleep: Callable[[float], object] = time.sleep) -> Iterator[T]:
    """Yield what ``begin`` does, and begin again where the store does not answer: it goes on after what was yielded.

    Raises:
        What else it raises: to ask again would change nothing.
    """
    while True:
        try:
            yield from begin()
        except StoreUnavailable as error:
            say(f"pulse: {error}; asked again in {PAUSE_S:g} s", error=True, flush=True)
            sleep(PAUSE_S)
        else:
            return
