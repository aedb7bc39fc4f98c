"""Run lines: what streams about many runs tell of them, a line of JSON each, numbered in the order of their changes.

So a stream is a number: it is told what changed since, as it is now. One that reads slowly, or comes back, misses
nothing, and is owed no more than a line of each run. Pure.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from blake3 import blake3

from pulse_schemas.api import RunChanges
from pulse_server.transport.server_sent import event

EVENT_BYTES: Final = 32 << 10
"""Of lines in an event, but for its last one's."""


@dataclass(frozen=True, slots=True)
class View:
    """The runs that a stream tells of.

    Attributes:
        runs: their names.
        more: whether its token may read further ones.
        key: another one where other runs are seen than before, though their lines are old.
    """

    runs: frozenset[str] = frozenset()
    more: bool = False
    key: str = ""

    @classmethod
    def of(cls, patterns: Sequence[str], runs: Sequence[str], more: bool) -> Self:
        """Return the view of tokens with these patterns: the first runs, sorted, that they may read.

        All that they may read: then a run that comes in has a new line. Of the first ones, another may come in.
        """
        seen = [*patterns, "", *(runs if more else ())]
        return cls(frozenset(runs), more, blake3("\n".join(seen).encode()).hexdigest(4))


@dataclass(slots=True)
class Place:
    """Up to where a stream was told all: the change ``number`` of ``term``, and that there are ``total`` runs.

    Before its first event: none of ours.
    """

    term: str = ""
    number: int = 0
    total: int = 0

    @classmethod
    def of(cls, text: str) -> Place:
        """Return the place that an event's id names; one before all events, if it is no id of ours."""
        term, *numbers = text.split("-", 3)
        good = all(number.isascii() and number.isdecimal() and len(number) < 19 for number in numbers)
        return cls(term, *map(int, numbers)) if good and len(numbers) == 2 else cls()

    def __str__(self) -> str:
        """Return it as the id of an event."""
        return f"{self.term}-{self.number}-{self.total}"


class RunLines:
    """The lines of all runs. Not thread-safe: one event loop asks."""

    def __init__(self) -> None:
        """Begin without runs."""
        self._lines: OrderedDict[str, tuple[int, str]] = OrderedDict()  # the one that changed last is the last
        self._number = 0
        self._term = secrets.token_hex(4)

    def __len__(self) -> int:
        """Return how many runs have a line."""
        return len(self._lines)

    def put(self, run: str, line: str) -> bool:
        """Tell this of a run from now on; return whether it is another line than before."""
        if run in self._lines and self._lines[run][1] == line:
            return False
        self._number += 1
        self._lines[run] = self._number, line
        self._lines.move_to_end(run)
        return True

    def drop(self, run: str) -> None:
        """Tell of a run no more: all streams begin anew, since none is told what is gone."""
        if self._lines.pop(run, None) is not None:
            self._term = secrets.token_hex(4)

    def clear(self) -> None:
        """Tell of nothing: all streams begin anew."""
        self._lines.clear()
        self._term = secrets.token_hex(4)

    def read(self, place: Place, view: View) -> tuple[Place, bytes]:
        """Return the event that follows a place, and the place after it; no bytes where nothing is to be told."""
        term, total = self._term + view.key, len(view.runs)
        whole = place.term != term or place.number > self._number
        changed: list[tuple[int, str]] = []
        for run, (number, line) in reversed(self._lines.items()):
            if not whole and number <= place.number:
                break
            if run in view.runs:
                changed.append((number, line))
        lines: list[str] = []
        after = Place(term, self._number, total)
        room = EVENT_BYTES
        while changed and room > 0:
            number, line = changed.pop()
            lines.append(line)
            room -= len(line)
            after.number = number if changed else self._number
        if not lines and not whole and place.total == total:
            return after, b""
        told = RunChanges(whole=whole, total=total, more=view.more, runs=())
        head, _, tail = told.model_dump_json().rpartition("[]")
        return after, event("runs", f"{head}[{','.join(lines)}]{tail}", str(after))
