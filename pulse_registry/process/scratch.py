"""Scratch memory: a buffer for each thread, used over and over; fresh memory a piece would cost more than the copy."""

from __future__ import annotations

import threading


class Scratch(threading.local):
    """This thread's buffer, as long as the longest piece that was asked for."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def of(self, nbytes: int) -> memoryview:
        """Return as much of this thread's."""
        if len(self._memory) < nbytes:
            self._memory = bytearray(nbytes)
        return memoryview(self._memory)[:nbytes]
