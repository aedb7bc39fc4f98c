"""The rate of a mirror: how many bytes a second it fetches at most, over all of its threads."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

from pulse_registry.errors import InvalidArgument

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


class Rate:
    """Lets bytes through at a rate; thread-safe. A burst is what one thread asks for at once."""

    def __init__(
        self,
        bytes_per_s: float | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Let so many bytes a second through; None: all, at once."""
        self._bytes_per_s, self._monotonic, self._sleep = bytes_per_s, monotonic, sleep
        self._lock = threading.Lock()
        self._free = monotonic()

    def take(self, nbytes: int) -> None:
        """Wait until so many bytes may go."""
        if self._bytes_per_s is None:
            return
        with self._lock:
            now = self._monotonic()
            begin = max(now, self._free)
            self._free = begin + nbytes / self._bytes_per_s
        if begin > now:
            self._sleep(begin - now)


def parse_rate(text: str) -> float:
    """Return bytes a second of a rate that is written as bits: ``2Gbit``, ``500Mbit``.

    Raises:
        InvalidArgument: it is no such thing.
    """
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([KMG]?)bit", text, re.ASCII)
    if found is None or not float(found[1]):
        raise InvalidArgument(f"{text!r} is no rate: write bits a second, such as 500Mbit or 2Gbit")
    return float(found[1]) * _UNITS[found[2]] / 8
