"""The bounds on a connection hang on methods of uvicorn's own: they are still called, and the bounds hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

import pytest

from pulse_server.transport import connection as module
from pulse_server.transport.addresses import network
from pulse_server.transport.connection import HEAD_S, MAX_WAITING, PACED_BYTES, Connection, Unsent
from tests.support.peer import CHUNKED, IDLE_S, LIMIT, PACE_S, REQUEST, UNSENT, Peer, Wire


@pytest.fixture
def peer() -> Iterator[Peer]:
    loop = asyncio.SelectorEventLoop()
    peer = Peer(loop)
    yield peer
    if peer.hold is not None:
        peer.hold.set()
    peer.protocol.connection_lost(None)
    for _ in range(10 + MAX_WAITING):
        loop.run_until_complete(asyncio.sleep(0))
    assert not peer.protocol.of_network
    loop.close()


def test_uvicorn_calls_all_that_the_bounds_hang_on(peer: Peer) -> None:
    assert len(peer.overridden) > 8
    assert peer.send(REQUEST).startswith(b"HTTP/1.1 200")
    assert peer.send(CHUNKED + b"1\r\na\r\n0\r\n\r\n").startswith(b"HTTP/1.1 200")
    peer.protocol.pause_writing()
    peer.protocol.resume_writing()
    peer.timers.pass_(IDLE_S)
    assert peer.send(b"no request\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert peer.called == peer.overridden - {"connection_lost"}


def test_a_head_that_is_whole_and_too_long_is_refused(peer: Peer) -> None:
    assert peer.send(REQUEST[:-2] + b"x: " + b"a" * LIMIT + b"\r\n\r\n").startswith(b"HTTP/1.1 431")
    assert peer.wire.closed


def test_a_head_of_many_small_headers_is_counted_by_what_they_take(peer: Peer) -> None:
    assert peer.send(REQUEST[:-2] + b"a:\r\n" * (LIMIT // 32) + b"\r\n").startswith(b"HTTP/1.1 431")
    assert peer.wire.closed


def test_a_line_without_end_is_refused(peer: Peer) -> None:
    peer.send(b"GET /")
    for _ in range(LIMIT // 100 - 1):
        assert peer.send(b"a" * 100) == b""
    assert peer.send(b"a" * 100).startswith(b"HTTP/1.1 431")
    assert peer.wire.closed


@pytest.mark.parametrize("before", [0, 1, 3], ids=lambda before: f"{before}-before")
def test_a_head_without_end_is_refused_on_a_new_connection_and_on_one_in_use(peer: Peer, before: int) -> None:
    long = b"y: " + b"b" * (LIMIT * 3 // 4) + b"\r\n\r\n"
    for _ in range(before):  # each head is counted for itself
        assert peer.send(REQUEST[:-2] + long).startswith(b"HTTP/1.1 200")
    peer.send(b"GET / HTTP/1.1\r\nx: ")
    for _ in range(LIMIT // 100 - 1):
        assert peer.send(b"a" * 100) == b""
    assert peer.send(b"a" * 100).startswith(b"HTTP/1.1 431")
    assert peer.wire.closed


def test_a_head_in_many_pieces_is_counted_once(peer: Peer) -> None:
    head = REQUEST[:-2] + b"y: " + b"b" * (LIMIT * 3 // 4) + b"\r\n\r\n"
    answers = [peer.send(head[i : i + 1]) for i in range(len(head))]
    assert b"".join(answers).startswith(b"HTTP/1.1 200")
    assert peer.send(REQUEST).startswith(b"HTTP/1.1 200")


def test_a_long_body_is_no_long_head(peer: Peer) -> None:
    peer.reads = True
    peer.send(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (10 * LIMIT))
    for _ in range(9):
        assert peer.send(b"x" * LIMIT) == b""
    assert peer.send(b"x" * LIMIT).startswith(b"HTTP/1.1 200")


def test_a_body_in_pieces_of_an_honest_size_is_taken(peer: Peer) -> None:
    peer.reads = True
    peer.send(CHUNKED)
    for _ in range(100):
        assert peer.send(b"1000\r\n" + b"x" * 4096 + b"\r\n") == b""
    assert peer.send(b"0\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert peer.send(REQUEST).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("trailer", [b"a: b\r\n", b"a:\r\n"])
@pytest.mark.parametrize("reads", [True, False], ids=["before-the-answer", "after-it"])
def test_trailers_are_refused(peer: Peer, trailer: bytes, reads: bool) -> None:
    peer.reads = reads
    peer.send(CHUNKED + b"1\r\nx\r\n")
    answer = peer.send(b"0\r\n" + trailer + b"\r\n")
    assert peer.wire.closed
    assert answer.startswith(b"HTTP/1.1 400") if reads else answer == b""


ENDLESS = {
    "a trailer's name": (b"0\r\n", b"a" * 100),
    "a trailer's value": (b"0\r\na: ", b"a" * 100),
    "an extension of a chunk": (b"1;", b"a" * 100),
    "a value of an extension": (b'1;a="', b"a" * 100),
    "the number of a chunk's bytes": (b"1\r\na\r\n", b"0" * 100),
    "chunks of one byte": (b"", b"1\r\na\r\n" * 25),
}


@pytest.mark.parametrize("what", ENDLESS)
@pytest.mark.parametrize("reads", [True, False], ids=["before-the-answer", "after-it"])
def test_what_is_no_body_ends(peer: Peer, what: str, reads: bool) -> None:
    beginning, more = ENDLESS[what]
    peer.reads = reads
    peer.send(CHUNKED)
    peer.send(beginning)
    sent = 0
    while not peer.wire.closed and sent < 4 * LIMIT:
        answer = peer.send(more)
        sent += len(more)
    assert peer.wire.closed
    assert sent <= LIMIT + 500
    assert answer[:12] in ((b"HTTP/1.1 431", b"HTTP/1.1 400") if reads else (b"",))


def test_lines_without_a_request_end(peer: Peer) -> None:
    peer.send(REQUEST)
    for _ in range(LIMIT // 100):
        peer.send(b"\r\n" * 50)
    peer.send(b"\r\n")
    assert peer.wire.closed


def test_so_many_requests_may_wait_and_no_more(peer: Peer) -> None:
    peer.hold = asyncio.Event()
    peer.send(REQUEST * (1 + MAX_WAITING))
    assert not peer.wire.closed
    assert not peer.wire.reading
    peer.hold.set()
    for _ in range(10 * MAX_WAITING):
        peer.loop.run_until_complete(asyncio.sleep(0))
    assert peer.wire.sent.count(b"HTTP/1.1 200") == 1 + MAX_WAITING

    peer.hold = asyncio.Event()
    assert peer.send(REQUEST * (2 + MAX_WAITING)) == b""
    assert peer.wire.closed


def test_a_body_that_waits_is_bounded(peer: Peer) -> None:
    peer.hold = asyncio.Event()
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n"
    peer.send(REQUEST + head + b"x" * LIMIT)
    assert not peer.wire.closed
    assert peer.send(b"x") == b""
    assert peer.wire.closed


def test_the_rest_of_a_body_that_was_answered_ends(peer: Peer) -> None:
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (10 * PACED_BYTES)
    assert peer.send(head).startswith(b"HTTP/1.1 200")
    peer.send(bytes(PACED_BYTES))
    assert not peer.wire.closed
    assert peer.send(b"x") == b""
    assert peer.wire.closed


def test_the_rest_of_a_body_that_was_answered_has_its_time(peer: Peer) -> None:
    assert peer.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n").startswith(b"HTTP/1.1 200")
    peer.send(b"x")  # uvicorn's time for idle connections ends here
    peer.timers.pass_(PACE_S - 1)
    assert not peer.wire.closed
    peer.timers.pass_(PACE_S)
    assert peer.wire.closed


def test_a_connection_that_says_nothing_is_closed(peer: Peer) -> None:
    peer.timers.pass_(HEAD_S - 1)
    assert not peer.wire.closed
    peer.timers.pass_(HEAD_S)
    assert peer.wire.closed


@pytest.mark.parametrize("before", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize("pieces", [(b"G",), (b"GET / HTTP/1.1\r\n", b"a: b\r\n"), (b"\r\n",)], ids=repr)
def test_a_head_has_its_time_however_often_a_piece_of_it_comes(
    peer: Peer, before: int, pieces: tuple[bytes, ...]
) -> None:
    if before:
        peer.send(REQUEST)
    for piece in pieces:
        peer.send(piece)
    peer.timers.pass_(HEAD_S - 1)
    assert not peer.wire.closed
    peer.timers.pass_(HEAD_S)
    assert peer.wire.closed


def test_who_waits_long_for_an_answer_is_not_sent_away(peer: Peer) -> None:
    peer.hold = asyncio.Event()
    peer.send(REQUEST + b"GET ")
    for _ in range(3):
        peer.timers.pass_(10 * PACE_S)
    assert not peer.wire.closed
    peer.hold.set()
    assert peer.send(b"/ HTTP/1.1\r\nhost: a\r\n\r\n").count(b"HTTP/1.1 200") == 2


def test_who_does_not_take_an_answer_is_sent_away(peer: Peer) -> None:
    peer.send(REQUEST)
    peer.wire.unsent = 10 * PACED_BYTES
    peer.protocol.pause_writing()
    peer.wire.unsent -= PACED_BYTES
    peer.timers.pass_(PACE_S)
    assert not peer.wire.closed, "slow, but fast enough"
    peer.wire.unsent -= PACED_BYTES - 1
    peer.timers.pass_(PACE_S)
    assert peer.wire.aborted


def test_of_answers_that_nobody_takes_the_longest_of_the_greediest_is_cut() -> None:
    class Cut:
        def __init__(self, name: str) -> None:
            self.name = name

        def cut(self) -> None:
            cut.append(self.name)

    cut: list[str] = []
    unsent = Unsent(100)
    small, large, other, last = (cast(Connection, Cut(name)) for name in ("small", "large", "other", "last"))
    unsent.hold(small, "a", 20)
    unsent.hold(large, "a", 30)
    unsent.hold(other, "b", 45)
    unsent.hold(last, "c", 5)
    assert (cut, len(unsent)) == ([], 100)
    unsent.hold(last, "c", 10)
    assert (cut, len(unsent)) == (["large"], 75)
    for connection in (small, large, other):
        unsent.release(connection)
    unsent.hold(last, "c", 1000)
    assert (cut, len(unsent)) == (["large"], 1000)
    unsent.release(last)
    assert len(unsent) == 0


def test_what_a_client_has_yet_to_take_counts_until_it_has_or_has_gone(peer: Peer) -> None:
    other = peer.make()
    other.connection_made(Wire())
    unsent = peer.protocol.unsent
    for protocol in (peer.protocol, other):
        protocol.data_received(REQUEST)
        cast(Wire, protocol.transport).unsent = UNSENT // 2
        protocol.pause_writing()
    assert len(unsent) == UNSENT
    peer.protocol.resume_writing()
    assert len(unsent) == UNSENT // 2
    peer.wire.unsent = UNSENT
    peer.protocol.pause_writing()
    peer.loop.run_until_complete(asyncio.sleep(0))
    assert peer.wire.aborted
    assert len(unsent) == UNSENT // 2
    other.connection_lost(None)
    assert len(unsent) == 0
    for _ in range(10):
        peer.loop.run_until_complete(asyncio.sleep(0))


def test_who_does_not_take_the_last_answer_before_the_end_is_sent_away(peer: Peer) -> None:
    peer.wire.unsent = 1
    assert peer.send(b"no request\r\n\r\n").startswith(b"HTTP/1.1 400")
    peer.timers.pass_(PACE_S)
    assert peer.wire.aborted


def test_an_idle_connection_ends_though_its_answer_was_not_taken(peer: Peer) -> None:
    peer.send(REQUEST)
    peer.wire.unsent = 1
    peer.timers.pass_(IDLE_S)
    assert peer.wire.closed
    assert not peer.wire.aborted
    peer.timers.pass_(PACE_S)
    assert peer.wire.aborted


def test_an_address_has_so_many_connections_and_no_more(peer: Peer) -> None:
    made = []
    for _ in range(2):
        protocol, wire = peer.make(), Wire()
        protocol.connection_made(wire)
        made.append((protocol, wire))
    assert [wire.aborted for _, wire in made] == [False, True]
    for protocol, _ in made:
        protocol.connection_lost(None)
    protocol, wire = peer.make(), Wire()
    protocol.connection_made(wire)
    assert not wire.aborted, "those that are gone count no more"
    protocol.connection_lost(None)


@pytest.mark.parametrize(
    ("address", "whose"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1%eth0", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("a" * 60_000, "a" * 64),
        (":" * 60_000, ":" * 64),
    ],
)
def test_whose_an_address_is(address: str, whose: str) -> None:
    assert network(address) == whose


def test_requests_of_other_kinds_are_answered_or_refused(peer: Peer) -> None:
    assert peer.send(b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert peer.wire.closed


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.1\r\nhost: a\r\nx: a\r\n b\r\n\r\n",  # a folded line
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: " + b"9" * 400 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",  # TLS
        b"\0" * 100,
    ],
    ids=lambda request: repr(request[-40:]),
)
def test_what_is_no_request_of_ours_is_refused_and_the_connection_closed(peer: Peer, request_: bytes) -> None:
    assert peer.send(request_).startswith(b"HTTP/1.1 400")
    assert peer.wire.closed


@pytest.mark.parametrize("head", [b"connection: upgrade\r\nupgrade: websocket\r\n", b"expect: 100-continue\r\n"])
def test_what_is_not_offered_is_passed_over(peer: Peer, head: bytes) -> None:
    assert peer.send(b"GET / HTTP/1.1\r\nhost: a\r\n" + head + b"\r\n").startswith(b"HTTP/1.1 200")


def test_constants_are_what_the_documents_say() -> None:
    assert (module.HEAD_S, module.MAX_WAITING, module.PACED_BYTES) == (30, 16, 2 << 20)
