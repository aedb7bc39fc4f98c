"""How far the roots of a run are known to have come, log by log: whose word counts for where a log ends.

A mirror creates records in order. So a root that has record n - 1 knows whether there is a record n, as far as it has
been told; one that lacks n - 1 is behind, and its "no" means nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

_MOST_LOGS: Final = 4096
"""Logs that are remembered; of others a root is asked anew."""


class Ends:
    """The newest record of each log that each root has shown. Thread-safe."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._lock = threading.Lock()
        self._logs: OrderedDict[str, dict[int, int]] = OrderedDict()
        self._moves: dict[str, int] = {}
        self._led: dict[str, tuple[int, int | None]] = {}

    def shown(self, log: str, root: int, seq: int) -> None:
        """Note that a root has a record."""
        with self._lock:
            ends = self._logs.setdefault(log, {})
            ends[root] = max(ends.get(root, -1), seq)
            self._logs.move_to_end(log)
            if len(self._logs) > _MOST_LOGS:
                forgotten = self._logs.popitem(last=False)[0]
                self._moves.pop(forgotten, None)
                self._led.pop(forgotten, None)

    def of(self, log: str, root: int) -> int:
        """Return the newest record that a root has shown; -1: none."""
        with self._lock:
            return self._logs.get(log, {}).get(root, -1)

    def moved(self, log: str, seq: int) -> None:
        """Note that a record moved the run: but for its new home, no root can say whether there are others after it."""
        with self._lock:
            self._moves[log] = max(self._moves.get(log, -1), seq)

    def leads(self, log: str, seq: int, root: int) -> None:
        """Note that the move of record ``seq`` is proved to have led to a root: the log goes on there, or nowhere."""
        with self._lock:
            self._led[log] = seq, root

    def goes_on_at(self, log: str) -> int | None:
        """Return the root that the newest record that any root has shown is proved to have moved the run to."""
        with self._lock:
            seq, root = self._led.get(log, (-1, None))
            return root if seq == max(self._logs.get(log, {}).values(), default=-1) else None

    def may_go_on_elsewhere(self, log: str) -> bool:
        """Return whether the newest record that any root has shown moved the run."""
        with self._lock:
            ends = self._logs.get(log, {})
            return bool(ends) and max(ends.values()) == self._moves.get(log)

    def newest(self, log: str) -> int:
        """Return the newest record that any root has shown; -1: none."""
        with self._lock:
            return max(self._logs.get(log, {}).values(), default=-1)
