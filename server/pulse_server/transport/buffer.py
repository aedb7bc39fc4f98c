"""Memory budget for bodies that are being read, in shares: of a token, and of a run of it.

Where there is no room, the largest body that is still coming is given up: of the run, of the token, or of the token
that holds most. So what one token sends, however much and however slowly, takes no room from a smaller one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pulse_server.errors import TooManyRequests

_TOKENS: Final = 4
_RUNS: Final = 2
"""A token may have a fourth of all, and a run half of its token's: what is left is for others."""

_SHORT: Final = 64 << 10
"""A longer body is not begun where there is no room for all of it: to read it in vain costs others their time."""
_RETRY_S: Final = 1.0


class Body:
    """A body as far as it has come."""

    def __init__(self, buffer: Buffer, token: str, run: str) -> None:
        """Begin with nothing of it; this task reads it."""
        self.token, self.run = token, (token, run)
        self.nbytes, self.coming, self.given_up = 0, True, False
        self.task = asyncio.current_task()
        self._buffer = buffer
        self._data: bytes | bytearray = b""

    def add(self, piece: bytes) -> None:
        """Add what came, and make room for it.

        Raises:
            TooManyRequests: there is none, and no larger body to give up.
        """
        if not self._data:
            self._data = piece
        elif isinstance(self._data, bytearray):
            self._data += piece
        else:
            self._data = bytearray(self._data + piece)
        self._buffer.grow(self, len(piece))
        if self.given_up:
            raise _no_room()

    @contextmanager
    def coming_in(self) -> Iterator[None]:
        """Wait for more of it in this block, which ends if it is given up meanwhile.

        Raises:
            TooManyRequests: it was, as the largest, where there was no more room.
        """
        try:
            yield
        except asyncio.CancelledError:
            if not self.given_up or self.task is None:
                raise
            self.task.uncancel()
            raise _no_room() from None

    def whole(self) -> bytes:
        """Return all of it, and keep none; it counts until it has been answered, and is not given up any more."""
        self.coming = False
        data, self._data = bytes(self._data), b""
        return data

    def drop(self) -> None:
        """Forget what came."""
        self._data = b""


class Buffer:
    """Counts what bodies take. Not thread-safe: one event loop asks."""

    def __init__(self, nbytes: int, longest: int) -> None:
        """Begin with nothing.

        Args:
            nbytes: of all bodies together.
            longest: of one body; there is room for it in each share.
        """
        shares = (nbytes, nbytes // _TOKENS, nbytes // (_TOKENS * _RUNS))
        self._all, self._token, self._run = (max(share, longest) for share in shares)
        self._bodies: set[Body] = set()
        self._tokens: Counter[str] = Counter()
        self._runs: Counter[tuple[str, str]] = Counter()
        self._announced: Counter[str | tuple[str, str]] = Counter()
        self.nbytes = 0
        """What all of them take now."""

    @contextmanager
    def body(self, token: str, run: str, announced: int = 0) -> Iterator[Body]:
        """Count one body, of so many bytes at most, until the end of the block; read it in this task.

        Raises:
            TooManyRequests: it is a long one, and its share has no room for it beside those that are coming.
        """
        body = Body(self, token, run)
        nbytes = announced if announced > _SHORT else 0
        for whose, share in ((token, self._token), (body.run, self._run)):
            if nbytes and self._announced[whose] + nbytes > share:
                raise _no_room()
        self._bodies.add(body)
        self._announce(body, nbytes)
        try:
            yield body
        finally:
            self._bodies.discard(body)
            self._announce(body, -nbytes)
            self._count(body, -body.nbytes)

    def grow(self, body: Body, nbytes: int) -> None:
        """Count more of a body, and give up others, or this one, where that is too much."""
        self._count(body, nbytes)
        while self._runs[body.run] > self._run:
            self._give_up(lambda other: other.run == body.run)
        while self._tokens[body.token] > self._token:
            self._give_up(lambda other: other.token == body.token)
        while self.nbytes > self._all:
            self._give_up(lambda other: True)

    def _give_up(self, among: Callable[[Body], bool]) -> None:
        """Give up one body of those: the largest one, of the run that holds most, of the token that holds most."""
        coming = [body for body in self._bodies if body.coming and body.nbytes and among(body)]
        body = max(coming, key=lambda one: (self._tokens[one.token], self._runs[one.run], one.nbytes))
        self._count(body, -body.nbytes)
        body.drop()
        body.given_up = True
        if body.task is not None and body.task is not asyncio.current_task():
            body.task.cancel()  # it waits for more

    def _announce(self, body: Body, nbytes: int) -> None:
        for whose in (body.token, body.run):
            self._announced[whose] += nbytes
            if not self._announced[whose]:
                del self._announced[whose]

    def _count(self, body: Body, nbytes: int) -> None:
        body.nbytes += nbytes
        self.nbytes += nbytes
        self._tokens[body.token] += nbytes
        self._runs[body.run] += nbytes
        if not self._runs[body.run]:
            del self._runs[body.run]
        if not self._tokens[body.token]:
            del self._tokens[body.token]


def _no_room() -> TooManyRequests:
    return TooManyRequests("the memory for request bodies is full: send this again later", _RETRY_S)
