"""LRU cache of answers that many ask for: all runs together in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Kept(Generic[Answer]):
    """Answers by what they are an answer to, which names the state that they are of. One event loop asks."""

    def __init__(self, max_bytes: int) -> None:
        """Begin with none."""
        self._max = max_bytes
        self._answers: OrderedDict[Hashable, tuple[Answer, int]] = OrderedDict()
        self.nbytes = 0
        """What all of them take."""

    def get(self, key: Hashable) -> Answer | None:
        """Return an answer if it is kept."""
        found = self._answers.get(key)
        if found is None:
            return None
        self._answers.move_to_end(key)
        return found[0]

    def keep(self, key: Hashable, answer: Answer, nbytes: int) -> None:
        """Keep an answer of so many bytes, while there is room for it."""
        _, known = self._answers.pop(key, (None, 0))
        self._answers[key] = answer, nbytes
        self.nbytes += nbytes - known
        while self.nbytes > self._max:
            _, (_, oldest) = self._answers.popitem(last=False)
            self.nbytes -= oldest
