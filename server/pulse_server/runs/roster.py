"""Roster: what all event streams of a run tell of its workers, as a list of a few and as what changed since.

Of thousands of workers a stream tells how many there are and how they stand, and shows those that are furthest behind.
What changed is one event, made once for all streams. A stream that missed some of them begins anew with the list.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from pulse_schemas.api import WorkerBody, WorkerChanges, WorkerList, WorkerName, WorkerSummary
from pulse_server.scheduling.allowance import Allowance
from pulse_server.transport.server_sent import event

MOST: Final = 25
"""Workers that are shown."""
MOST_BYTES: Final = 8 << 10
"""Of these, about."""
_BURST: Final = 4 << 10
_PER_S: Final = 1 << 10
"""Bytes of changes that a stream is told at once, and a second from then on."""
_KEPT: Final = 8
"""Changes that are kept for the streams that have not sent them yet."""

Name = tuple[str, str]


class Roster:
    """The workers of a run as its event streams tell of them. Not thread-safe: one event loop asks.

    Attributes:
        number: rises by one with each change.
        looked: the edition and the time that it was made of: it is made anew for a later one.
        making: the task that makes it anew.
        readers: streams that were told something: without any, nothing has to be told of what changes.
    """

    def __init__(self, run: str, clock: Callable[[], float]) -> None:
        """Begin without workers."""
        self.number = 0
        self.looked = (-1, 0)
        self.making: asyncio.Task[None] | None = None
        self.readers = 0
        self._run = run
        self._summary = WorkerSummary(workers=0, differing=0, oldest=None, newest=None, at_newest=0)
        self._told: dict[Name, WorkerBody] = {}
        self._changes: deque[bytes] = deque(maxlen=_KEPT)
        self._allowance = Allowance(_BURST, _PER_S, clock)
        self._list: bytes | None = None

    def follow(self, summary: WorkerSummary, shown: Iterable[WorkerBody]) -> bool:
        """Take what is to be told from now on, as far as there is an allowance for it; the summary comes with all else.

        Returns:
            Whether nothing was left out; otherwise call it again in a while.
        """
        wanted = {_name(worker): worker for worker in shown}
        gone = [name for name in self._told if name not in wanted]
        changed = [worker for name, worker in wanted.items() if not _same(self._told.get(name), worker)]
        if not gone and not changed and summary == self._summary:
            return True
        left = self._allowance.left if self.readers else math.inf
        if left <= 0:
            return False
        some = [*_first(changed, left)]
        change = WorkerChanges.model_construct(
            run=self._run,
            summary=summary,
            workers=tuple(some),
            gone=tuple(WorkerName.model_construct(worker=worker, token=token) for worker, token in gone),
        )
        told = event("worker_changes", change.model_dump_json())
        self._allowance.spend(len(told) if self.readers else 0)
        self._changes.append(told)
        for name in gone:
            del self._told[name]
        self._told |= {_name(worker): worker for worker in some}
        self._summary, self._list = summary, None
        self.number += 1
        return len(some) == len(changed)

    def since(self, number: int) -> bytes:
        """Return the events that bring who was told all up to ``number`` up to date, -1: nothing yet."""
        missed = self.number - number
        if number >= 0 and missed <= len(self._changes):
            changes = b"".join(list(self._changes)[len(self._changes) - missed :])
            if len(changes) <= MOST_BYTES:
                return changes
        if self._list is None:
            told = tuple(self._told[name] for name in sorted(self._told))
            listed = WorkerList.model_construct(run=self._run, workers=told, summary=self._summary)
            self._list = event("workers", listed.model_dump_json())
        return self._list


def _first(workers: Iterable[WorkerBody], room: float) -> Iterator[WorkerBody]:
    """Yield workers until they fill a room."""
    for worker in workers:
        if room <= 0:
            return
        yield worker
        room -= len(worker.model_dump_json())


def _name(worker: WorkerBody) -> Name:
    return worker.worker, worker.token


def _same(told: WorkerBody | None, worker: WorkerBody) -> bool:
    """Tell whether all is told of a worker; how far it is behind, whoever hears of versions knows."""
    return told is not None and told.model_copy(update={"staleness": worker.staleness}) == worker
