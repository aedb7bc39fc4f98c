"""Connection limits before a token is known: sizes, times and requests that wait.

uvicorn and httptools take a message of any length, and wait for as long as a client likes. Here are bounds on all bytes
of a message that are no body (its line, its headers, what chunks add; trailers are refused), on requests that are sent
before the one before them is answered, on the time that a head may take and an answer's way out, and on the connections
of one address.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pulse_server.auth.access import PRINCIPAL, Principal
from pulse_server.transport.addresses import network

HEADER_COST: Final = 32
"""Bytes that a header counts for besides its name and value: what it takes in memory (RFC 9113, 6.5.2)."""
MAX_WAITING: Final = 16
"""Requests of one connection that may wait behind the one that is being answered; those of one more end it."""
HEAD_S: Final = 30.0
"""A request's head must be whole so long after its first bytes; the first one of a connection, after its beginning."""
PACED_BYTES: Final = 2 << 20
"""Of an answer, so many (or all) must be taken in the time that a body has; after it, no more of its request's body."""

_BETWEEN, _HEAD, _BODY = range(3)
"""Where in its messages a connection is. (An enumeration would cost each header more.)"""
_TOO_LONG: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Unsent:
    """What clients have yet to take of answers, which is in memory; where it is too much, the most of one goes.

    That is the connection with most of the caller with most: it is cut, and its answer with it.
    """

    def __init__(self, max_bytes: int) -> None:
        """Begin with nothing; ``max_bytes``: of all connections together."""
        self._max = max_bytes
        self._held: dict[Connection, tuple[str, int]] = {}
        self._of_caller: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return how many bytes there are."""
        return self._of_caller.total()

    def hold(self, connection: Connection, whose: str, nbytes: int) -> None:
        """Count what a connection has yet to send, in place of what it had, and cut connections if need be."""
        self.release(connection)
        self._held[connection] = whose, nbytes
        self._of_caller[whose] += nbytes
        while len(self) > self._max and len(self._held) > 1:  # one alone may be as long as an answer is
            most = max(self._held, key=lambda one: (self._of_caller[self._held[one][0]], self._held[one][1]))
            self.release(most)
            most.cut()

    def release(self, connection: Connection) -> None:
        """Count a connection no more; one that is not counted is no error."""
        whose, nbytes = self._held.pop(connection, ("", 0))
        self._of_caller[whose] -= nbytes
        if not self._of_caller[whose]:
            del self._of_caller[whose]


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with bounds; `bounded` says which."""

    max_header_bytes: ClassVar[int]
    pace_s: ClassVar[float]
    max_connections: ClassVar[int]
    of_network: ClassVar[Counter[str]]
    unsent: ClassVar[Unsent]

    _network = ""
    _where = _BETWEEN
    _too_long = False
    _head = 0
    """Of the head: its line and the headers that are whole."""
    framing = 0
    """Bytes of a message that are no body; of a piece in which a message or a head ends, not all are counted."""
    _body = 0
    """Bytes of bodies in the piece received last."""
    _turns = 0
    """Beginnings and ends of heads in the piece received last."""
    _late = 0
    """Bytes of a body that came after the answer."""
    _unsent = 0
    _deadline: asyncio.TimerHandle | None = None
    _outward: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin, unless the address has too many connections."""
        super().connection_made(transport)
        self._network = network(self.client[0] if self.client else "")
        self.of_network[self._network] += 1
        if self.of_network[self._network] > self.max_connections:
            self.transport.abort()
        else:
            self._deadline = self.loop.call_later(HEAD_S, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._clear_deadline()
        self._clear_outward()
        self.unsent.release(self)
        self.of_network[self._network] -= 1
        if not self.of_network[self._network]:
            del self.of_network[self._network]
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse a piece, and count what of it is no body."""
        between, self._turns, self._body = self._where == _BETWEEN, 0, 0
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._turns or (between and self._turns == 1):
            self.framing += len(data) - self._body
            if self.framing > self.max_header_bytes:
                self._too_long = True
                self.send_400_response("")
                return
        if self._deadline is None and (self._where == _HEAD or (self._where == _BETWEEN and self.framing)):
            self._deadline = self.loop.call_later(HEAD_S, self._give_up)

    def on_message_begin(self) -> None:
        """Count anew."""
        self._where = _HEAD
        self._turns += 1
        self._head = self.framing = self._late = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what comes after a body is none."""
        self._head += len(name) + len(value) + HEADER_COST
        if self._head > self.max_header_bytes or self._where != _HEAD:
            self._too_long = self._where == _HEAD
            raise ValueError("the headers are too long, or there are trailers")  # the parser calls send_400_response
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand on the request, or let it wait for its turn."""
        self._head += len(self.url)
        if self._head > self.max_header_bytes:
            self._too_long = True
            raise ValueError("the request line and headers are too long")
        if len(self.pipeline) >= MAX_WAITING:
            raise ValueError(f"over {MAX_WAITING} pipelined requests wait on this connection")
        self._where, self.framing = _BODY, self._head
        self._turns += 1
        self._clear_deadline()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._body += len(body)
        if self.cycle.response_complete:
            self._late += len(body)
            if self._late > PACED_BYTES:
                raise ValueError("the body goes on after the request was answered")
        super().on_body(body)
        if self.pipeline and len(self.cycle.body) > self.max_header_bytes:
            raise ValueError("the body of a pipelined request is too long")  # the request before it goes on reading

    def on_message_complete(self) -> None:
        """Go on to the next message."""
        self._where, self.framing = _BETWEEN, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on to the next request; what is left of this one's body has its time."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_outward()
        elif self._where == _BODY and self._deadline is None:
            # Until the next head is whole: uvicorn's own time for idle connections ends with the next byte.
            self._deadline = self.loop.call_later(self.pace_s, self._give_up)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not valid, or too long, where an answer is due; and close the connection."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if self._where == _BODY:
            due = answering and not self.cycle.response_started and not self.pipeline
        else:
            due = not answering
        if due and self._too_long:
            self.transport.write(_TOO_LONG)
        elif due:
            super().send_400_response(msg)
        self._end()

    def pause_writing(self) -> None:
        """Look after an answer that is not taken at once."""
        super().pause_writing()
        who = None if self.cycle is None else self.cycle.scope.get(PRINCIPAL)
        whose = (who.id if isinstance(who, Principal) else "") or self._network
        self.unsent.hold(self, whose, self.transport.get_write_buffer_size())
        self._watch_outward()

    def resume_writing(self) -> None:
        """Go on: it was taken."""
        self._clear_outward()
        self.unsent.release(self)
        super().resume_writing()

    def cut(self) -> None:
        """End at once, whatever is under way."""
        self.loop.call_soon(self.transport.abort)  # not in the midst of a write

    def timeout_keep_alive_handler(self) -> None:
        """End an idle connection, once its client has taken its last answer, or takes it no more."""
        self._end()

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._end()
        else:  # the next head may take as long as the answer before it
            self._deadline = self.loop.call_later(HEAD_S, self._give_up)

    def _end(self) -> None:
        self.transport.close()
        self._watch_outward()  # a transport waits for its client before it closes

    def _watch_outward(self) -> None:
        self._clear_outward()
        self._unsent = self.transport.get_write_buffer_size()
        self._outward = self.loop.call_later(self.pace_s, self._look_outward)

    def _look_outward(self) -> None:
        if self._unsent - self.transport.get_write_buffer_size() < PACED_BYTES:
            self.transport.abort()
        else:
            self._watch_outward()

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _clear_outward(self) -> None:
        if self._outward is not None:
            self._outward.cancel()
            self._outward = None


def bounded(*, max_header_bytes: int, pace_s: float, max_connections: int, max_unsent_bytes: int) -> type[Connection]:
    """Return the protocol of one server.

    Args:
        max_header_bytes: of a message, all that is no body; of a head besides, 32 bytes a header. A piece that is
            received at once (256 KiB at most) is parsed before it is counted.
        pace_s: seconds in which a client must take 2 MiB of an answer, or all of it.
        max_connections: of one address; of IPv6, of one /64.
        max_unsent_bytes: of all answers that clients have yet to take.
    """

    class Bounded(Connection):
        pass

    Bounded.max_header_bytes, Bounded.pace_s, Bounded.max_connections = max_header_bytes, pace_s, max_connections
    Bounded.of_network, Bounded.unsent = Counter(), Unsent(max_unsent_bytes)
    return Bounded
