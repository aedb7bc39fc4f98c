"""Memory for bodies is shared out: what has no room goes, the largest of the greediest first, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_server.errors import TooManyRequests
from pulse_server.transport.buffer import Body, Buffer


class Sender:
    """A body that is being read in a task of its own, which waits for more of it."""

    def __init__(self, buffer: Buffer, token: str, run: str) -> None:
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._taken = asyncio.Event()
        self.body: Body | None = None
        self.task = asyncio.create_task(self._read(buffer, token, run))

    async def _read(self, buffer: Buffer, token: str, run: str) -> bytes:
        with buffer.body(token, run) as self.body:
            while True:
                with self.body.coming_in():
                    piece = await self._pieces.get()
                if piece is None:
                    return self.body.whole()
                self.body.add(piece)
                self._taken.set()

    async def send(self, nbytes: int) -> bool:
        """Send more; return whether the body is still there."""
        self._taken.clear()
        self._pieces.put_nowait(b"x" * nbytes)
        taken = asyncio.create_task(self._taken.wait())
        await asyncio.wait((taken, self.task), return_when=asyncio.FIRST_COMPLETED)
        taken.cancel()
        return not self.task.done()

    async def end(self) -> bytes:
        self._pieces.put_nowait(None)
        return await self.task


@asynccontextmanager
async def senders(buffer: Buffer, *whose: tuple[str, str]) -> AsyncIterator[list[Sender]]:
    found = [Sender(buffer, token, run) for token, run in whose]
    yield found
    for one in found:
        one.task.cancel()
    await asyncio.wait([one.task for one in found])
    assert buffer.nbytes == 0


async def gone(sender: Sender) -> bool:
    """Tell whether a body was given up, its task having had its turn."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if not sender.task.done():
        return False
    with pytest.raises(TooManyRequests):
        await sender.task
    return True


def test_of_a_full_buffer_the_largest_body_of_the_greediest_goes() -> None:
    async def main() -> None:
        buffer = Buffer(100, 60)
        async with senders(buffer, ("a", "x"), ("a", "x"), ("b", "y"), ("c", "z")) as (small, large, other, last):
            for sender, nbytes in ((small, 20), (large, 30), (other, 40)):
                assert await sender.send(nbytes)
            assert await last.send(20)
            assert [await gone(sender) for sender in (small, large, other, last)] == [False, True, False, False]
            assert buffer.nbytes == 80

    asyncio.run(main())


def test_a_body_that_asks_for_more_than_its_share_is_itself_what_goes() -> None:
    async def main() -> None:
        buffer = Buffer(800, 10)
        async with senders(buffer, ("a", "x"), ("a", "y"), ("b", "x")) as (first, second, other):
            assert await first.send(100)
            assert await other.send(90)
            assert not await first.send(1)  # a run's share: half of a fourth
            assert await gone(first)
            assert await second.send(100)
            assert buffer.nbytes == 190

    asyncio.run(main())


def test_a_whole_body_is_not_given_up_and_counts_until_it_is_answered() -> None:
    async def main() -> None:
        buffer = Buffer(100, 100)
        with buffer.body("a", "x") as body:
            body.add(b"x" * 40)
            body.add(b"y" * 50)
            assert body.whole() == b"x" * 40 + b"y" * 50
            async with senders_kept(buffer, "b") as sender:
                assert await sender.send(10)
                assert not await sender.send(1)
            assert buffer.nbytes == 90
        assert buffer.nbytes == 0

    asyncio.run(main())


@asynccontextmanager
async def senders_kept(buffer: Buffer, token: str) -> AsyncIterator[Sender]:
    sender = Sender(buffer, token, "x")
    yield sender
    await asyncio.wait((sender.task,))


def test_who_is_cancelled_for_another_reason_is_told_nothing_else() -> None:
    async def main() -> None:
        buffer = Buffer(100, 100)
        sender = Sender(buffer, "a", "x")
        assert await sender.send(10)
        sender.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sender.task
        assert buffer.nbytes == 0

    asyncio.run(main())


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=60))
def test_whatever_comes_no_bound_is_passed(sent: list[tuple[int, int]]) -> None:
    async def main() -> None:
        whose = [("a", "x"), ("a", "y"), ("a", "y"), ("b", "x"), ("b", "y"), ("c", "x")]
        buffer = Buffer(120, 40)
        async with senders(buffer, *whose) as found:
            for number, nbytes in sent:
                if not found[number].task.done():
                    await found[number].send(nbytes)
                for sender in found:
                    await gone(sender)
                held: dict[str, int] = {}
                for sender in found:
                    if sender.body is not None:
                        held[sender.body.token] = held.get(sender.body.token, 0) + sender.body.nbytes
                assert buffer.nbytes == sum(held.values()) <= 120
                assert all(nbytes <= 40 for nbytes in held.values())

    asyncio.run(main())


def test_a_long_body_is_not_begun_where_its_share_has_no_room_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulse_server.transport.buffer._SHORT", 5)

    async def main() -> None:
        buffer = Buffer(800, 10)
        with buffer.body("a", "x", 60):
            with pytest.raises(TooManyRequests), buffer.body("a", "x", 41):
                pass
            with buffer.body("a", "x", 40), buffer.body("a", "y", 100), buffer.body("b", "x", 100):
                with buffer.body("a", "x", 5) as short:
                    short.add(b"x" * 5)
                with pytest.raises(TooManyRequests), buffer.body("a", "z", 6):  # a token's share
                    pass
        with buffer.body("a", "x", 100):
            pass

    asyncio.run(main())
