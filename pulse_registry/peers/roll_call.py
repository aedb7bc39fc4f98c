"""Roll call: who is still there, asked for through a store that the ranks share, when a collective fails or is slow.

What the sockets of a process group say of a failure names no rank. So each rank keeps one small entry in the store:
which call it waits in, or that it closed or gave up. Nothing is written while collectives succeed in no time.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from threading import Thread
from typing import Final, Protocol, Self, TypeVar

from pulse_registry.peers.peers import WARNING_S

_ENTRY: Final = struct.Struct("<BQH")
_RANK: Final = struct.Struct("<I")
_MOST_RANKS: Final = 1_000
_ANSWER_S: Final = 10.0
_HEARING_S: Final = 5.0
_PAUSES: Final = (0.005, 0.25)
Answer = TypeVar("Answer")


class SharedStore(Protocol):
    """What a roll call asks of torch.distributed's stores. Failures are RuntimeErrors."""

    def set(self, key: str, value: str) -> None:
        """Set a key's value."""

    def check(self, keys: list[str]) -> bool:
        """Tell whether all keys are set."""

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return values; waits for keys that are not set."""


class Presence(IntEnum):
    """What a rank says of itself. Values go over the wire: they are only ever added."""

    THERE = 1
    CLOSED = 2
    GAVE_UP = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """What a rank says.

    Attributes:
        presence: of itself.
        number: of its last call that waited, closed or gave up.
        ranks: of whom it says that they are lost; itself, if it broke off a call.
    """

    presence: Presence
    number: int
    ranks: tuple[int, ...] = ()

    def to_text(self) -> str:
        """Return the entry as the store keeps it."""
        ranks = self.ranks[:_MOST_RANKS]
        body = _ENTRY.pack(self.presence, self.number, len(ranks)) + b"".join(map(_RANK.pack, ranks))
        return body.hex()

    @classmethod
    def parse(cls, text: bytes, size: int) -> Self | None:
        """Read what ``to_text`` wrote; None if it is nothing that this release writes."""
        try:
            body = bytes.fromhex(text.decode("ascii"))
            presence, number, count = _ENTRY.unpack_from(body)
            ranks = tuple(rank for (rank,) in _RANK.iter_unpack(body[_ENTRY.size :]))
            entry = cls(Presence(presence), number, ranks)
        except (struct.error, ValueError):
            return None
        return entry if len(ranks) == count and all(rank < size for rank in ranks) else None


@dataclass(frozen=True, slots=True)
class Finding:
    """Who is lost, as far as it is known.

    Attributes:
        ranks: which; several: at least one of them, or, if they closed, all; none: it is not known.
        closed: they left on purpose.
        late: it is this rank, for which the others gave up waiting.
    """

    ranks: tuple[int, ...] = ()
    closed: bool = False
    late: bool = False


def poll(
    until: Callable[[], bool],
    timeout_s: float,
    tell: Callable[[], None] = lambda: None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Look again and again until something is so, and tell whether it is.

    Args:
        until: is asked at least once.
        timeout_s: how long.
        tell: is called once, after a minute.
        clock: seconds.
        sleep: lets seconds pass.
    """
    began, pause, told = clock(), _PAUSES[0], False
    while not until():
        waited = clock() - began
        if waited >= timeout_s:
            return False
        if waited >= WARNING_S and not told:
            told = True
            tell()
        sleep(pause)
        pause = min(2 * pause, _PAUSES[1])
    return True


class RollCall:
    """The entries of all ranks.

    Nothing here raises for a store that fails, or waits for one that does not answer: then it is not known who is
    there.

    Args:
        store: for these ranks and this handle alone.
        rank: of this process.
        size: how many ranks there are.
        clock: seconds.
        sleep: lets seconds pass.
    """

    def __init__(
        self,
        store: SharedStore,
        rank: int,
        size: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._clock, self._sleep = clock, sleep
        self._answers = True

    def say(self, presence: Presence, number: int, ranks: Iterable[int] = ()) -> None:
        """Write this rank's entry, in place of the one before."""
        text = Entry(presence, number, tuple(ranks)).to_text()
        self._ask(lambda: self._store.set(_key(self._rank), text))

    def meet(self, timeout_s: float, tell: Callable[[list[int]], None]) -> Finding | None:
        """Wait until all ranks have an entry, and return None; or who did not come in time, or is gone again.

        Args:
            timeout_s: how long.
            tell: is told of who is missing, after a minute.
        """
        keys = [_key(rank) for rank in range(self._size)]
        came = poll(
            lambda: bool(self._ask(lambda: self._store.check(keys))),
            timeout_s,
            lambda: tell(self._absent()),
            clock=self._clock,
            sleep=self._sleep,
        )
        if not came:
            return Finding(tuple(self._absent()))
        gone = [rank for rank, entry in enumerate(self._entries()) if entry and entry.presence is not Presence.THERE]
        return Finding(tuple(gone), closed=True) if gone else None

    def missing(self, number: int) -> list[int]:
        """Return the ranks that do not wait in a call, nor in a later one; none: it is not known."""
        entries = self._entries()
        return [
            rank
            for rank, entry in enumerate(entries)
            if rank != self._rank and (entry is None or entry.number < number or entry.presence is Presence.CLOSED)
        ]

    def lost(self, number: int) -> Finding:
        """Find out, after a call has failed, who is lost: the rank of which nothing is heard any more.

        The others fail, too, and say so; but one that is busy elsewhere says nothing for a while. So this waits until
        all but one are heard of, and for some seconds at most.
        """
        found: list[Finding] = []

        def heard_of_enough() -> bool:
            entries = self._entries()
            silent = [rank for rank, entry in enumerate(entries) if rank != self._rank and not _heard(entry, number)]
            judged = self._judge(entries, number)
            found[:] = [judged or Finding(tuple(silent))]
            return judged is not None or len(silent) <= 1

        poll(heard_of_enough, _HEARING_S, clock=self._clock, sleep=self._sleep)
        # Of two, it is the other one, whatever the store knows of it.
        return Finding((1 - self._rank,)) if self._size == 2 and not found[0].ranks else found[0]

    def _judge(self, entries: Sequence[Entry | None], number: int) -> Finding | None:
        """Return who is lost as far as the entries tell it outright."""
        closed = [rank for rank, entry in enumerate(entries) if entry and _closed_before(entry, number)]
        if closed:
            return Finding(tuple(closed), closed=True)
        broke_off = [rank for rank, entry in enumerate(entries) if entry and rank in entry.ranks and rank != self._rank]
        if broke_off:
            return Finding(tuple(broke_off))
        named = {rank for entry in entries if entry and entry.presence is Presence.GAVE_UP for rank in entry.ranks}
        if named == {self._rank}:
            return Finding((self._rank,), late=True)
        named -= {self._rank} | {rank for rank, entry in enumerate(entries) if _heard(entry, number)}
        return Finding(tuple(sorted(named))) if named else None

    def _entries(self) -> list[Entry | None]:
        """Return the entry of each rank; none at all where the store does not answer."""
        keys = [_key(rank) for rank in range(self._size)]
        texts = self._ask(lambda: self._store.multi_get(keys) if self._store.check(keys) else [])
        return [Entry.parse(text, self._size) for text in texts or ()]

    def _absent(self) -> list[int]:
        """Return the ranks that never had an entry."""
        return [
            rank
            for rank in range(self._size)
            if rank != self._rank and self._ask(lambda rank=rank: self._store.check([_key(rank)])) is False  # type: ignore[misc]
        ]

    def _ask(self, question: Callable[[], Answer]) -> Answer | None:
        """Ask the store, in a thread of its own, since one that hangs would take this one along; None: no answer."""
        if not self._answers:
            return None
        answers: list[Answer] = []

        def ask() -> None:
            with suppress(RuntimeError):
                answers.append(question())

        thread = Thread(target=ask, name="roll-call", daemon=True)
        thread.start()
        thread.join(_ANSWER_S)
        self._answers = not thread.is_alive()
        return answers[0] if answers else None


def _key(rank: int) -> str:
    return f"rank/{rank}"


def _closed_before(entry: Entry, number: int) -> bool:
    return entry.presence is Presence.CLOSED and entry.number < number


def _heard(entry: Entry | None, number: int) -> bool:
    """Tell whether a rank has been heard of since a call failed."""
    return entry is not None and (entry.presence is not Presence.THERE or entry.number > number)
