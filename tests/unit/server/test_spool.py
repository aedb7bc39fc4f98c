"""Objects on their way through the service: who sends slowly, or much, is in nobody's way but his own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pulse_registry.errors import StoreUnavailable
from pulse_registry.format import keys
from pulse_server.errors import InvalidRequest
from pulse_server.settings import Settings
from pulse_server.tokens import TokenSet, new_token
from pulse_server.transport import spool as module
from pulse_server.transport.spool import Spool
from tests.support.apps import Running, app_over, running
from tests.support.records import DictStore, write_id
from tests.support.waiting import HANG_S, NEVER_S
from tests.unit.server.edges import NOW, bearer


def patch(number: int) -> str:
    return keys.patch_key(number, number + 1, write_id(number))


@contextmanager
def slow_upload(served: Running, token: str, run: str, number: int) -> Iterator[None]:
    """Send the beginning of an object, once the service asks for it, and no more."""
    host, port = served.url.removeprefix("http://").split(":")
    head = (
        f"PUT /v1/runs/{run}/{patch(number)} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n"
        "content-length: 1000000\r\nexpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        connection.sendall(b"x")
        yield


def test_slow_senders_block_no_trainer_of_another_token_or_run() -> None:
    store = DictStore()
    made = [new_token(name, "publish", ("*",), now=NOW) for name in ("slow", "trainer")]
    (slow, _), (trainer, _) = made
    tokens = TokenSet(tokens=tuple(entry for _, entry in made))
    app = app_over(store, tokens=tokens, insecure_open=False, body_seconds=NEVER_S)
    with running(app) as served, ExitStack() as slow_ones:
        for number in range(Settings.model_fields["max_uploads"].default):
            slow_ones.enter_context(slow_upload(served, slow, "junk", number))
        for run, token in (("math", trainer), ("junk", trainer), ("math-2", slow)):
            url = f"{served.url}/v1/runs/{run}/{patch(99)}"
            assert httpx.put(url, content=b"data", headers=bearer(token), timeout=HANG_S).status_code == 201
            assert store.get(f"{run}/{patch(99)}") == b"data"
        slow_ones.close()
        url = f"{served.url}/v1/runs/junk/{patch(100)}"
        assert httpx.put(url, content=b"data", headers=bearer(slow), timeout=HANG_S).status_code == 201


class Senders:
    """Senders to one spool; each says when it is asked for its bytes, and sends them when it is told to."""

    def __init__(self, spool: Spool, store: DictStore) -> None:
        self.spool, self.store = spool, store
        self.asked: list[int] = []
        self.send: dict[int, asyncio.Event] = {}

    def begin(self, number: int, nbytes: int, sender: str = "a", run: str = "math") -> asyncio.Task[None]:
        self.send[number] = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            self.asked.append(number)
            await self.send[number].wait()
            yield b"x" * nbytes

        put = self.spool.put(self.store, patch(number), body(), nbytes, sender=sender, run=run)
        return asyncio.create_task(put)

    async def until_asked(self, *numbers: int) -> None:
        """Wait until just these are asked for their bytes; whoever else could be was so, too, by then."""
        async with asyncio.timeout(HANG_S):
            while set(self.asked) != set(numbers):
                await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert set(self.asked) == set(numbers)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_a_sender_has_a_share_of_each_run_and_one_of_all_runs(pool: ThreadPoolExecutor) -> None:
    async def go() -> None:
        senders = Senders(Spool(pool, objects=2, nbytes=100), DictStore())
        tasks = [senders.begin(number, 1) for number in range(4)]
        await senders.until_asked(0, 1)
        tasks += [senders.begin(10 + number, 1, run=f"r{number // 2}") for number in range(8)]
        await senders.until_asked(0, 1, 10, 11, 12, 13, 14, 15)
        tasks.append(senders.begin(20, 1, sender="b"))
        await senders.until_asked(0, 1, 10, 11, 12, 13, 14, 15, 20)
        senders.send[0].set()
        await tasks[0]
        await senders.until_asked(0, 1, 10, 11, 12, 13, 14, 15, 20, 16)
        for event in senders.send.values():
            event.set()
        await asyncio.gather(*tasks)
        assert len(senders.spool) == 0

    asyncio.run(go())


def test_the_bytes_that_are_under_way_are_bounded_and_an_object_over_the_bound_goes_alone(
    pool: ThreadPoolExecutor,
) -> None:
    async def go() -> None:
        senders = Senders(Spool(pool, objects=8, nbytes=100), DictStore())
        tasks = [senders.begin(0, 60), senders.begin(1, 60), senders.begin(2, 1000), senders.begin(3, 1)]
        await senders.until_asked(0)
        senders.send[0].set()
        await senders.until_asked(0, 1)  # and not 3, which came after the one that must wait
        senders.send[1].set()
        await senders.until_asked(0, 1, 2)
        senders.send[2].set()
        await senders.until_asked(0, 1, 2, 3)
        senders.send[3].set()
        await asyncio.gather(*tasks)

    asyncio.run(go())


def test_who_goes_away_while_waiting_gives_up_the_place(pool: ThreadPoolExecutor) -> None:
    async def go() -> None:
        senders = Senders(Spool(pool, objects=1, nbytes=100), DictStore())
        first, gone, last = (senders.begin(number, 1) for number in range(3))
        await senders.until_asked(0)
        gone.cancel()
        first.cancel()
        await asyncio.wait((first, gone))
        await senders.until_asked(0, 2)
        senders.send[2].set()
        await last
        assert len(senders.spool) == 0

    asyncio.run(go())


def test_a_place_before_the_store_is_taken_once_the_body_is_there(pool: ThreadPoolExecutor) -> None:
    async def go() -> None:
        senders = Senders(Spool(pool, objects=100, nbytes=100), DictStore())
        slow = [senders.begin(number, 1) for number in range(50)]
        quick = senders.begin(99, 1)
        senders.send[99].set()
        await quick
        assert [*senders.store.objects] == [patch(99)]
        for task in slow:
            task.cancel()
        await asyncio.wait(slow)

    asyncio.run(go())


def test_a_file_stays_until_a_put_that_nobody_waits_for_has_ended(pool: ThreadPoolExecutor) -> None:
    class Slow(DictStore):
        begun, go_on = threading.Event(), threading.Event()

        def put(self, key: str, data: Any, *, if_absent: bool = False) -> None:
            self.begun.set()
            assert self.go_on.wait(HANG_S)
            super().put(key, data, if_absent=if_absent)

    async def go() -> None:
        store = Slow()
        senders = Senders(Spool(pool, objects=8, nbytes=100), store)
        put = senders.begin(0, 100)
        senders.send[0].set()
        await asyncio.to_thread(store.begun.wait, HANG_S)
        put.cancel()
        store.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await put
        assert store.objects == {patch(0): b"x" * 100}

    asyncio.run(go())


def test_an_object_on_its_way_has_no_name_and_can_be_read_again(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Twice(DictStore):
        def put(self, key: str, data: Any, *, if_absent: bool = False) -> None:
            assert list(tmp_path.iterdir()) == []
            assert all(one == other for one, other in zip(data, data, strict=True)), "each reader from its own place"
            super().put(key, data, if_absent=if_absent)

    async def body() -> AsyncIterator[bytes]:
        yield b"xyz" * 1000

    monkeypatch.setattr(module, "temporary_folder", lambda: tmp_path)
    monkeypatch.setattr(module, "CHUNK", 1024)
    store = Twice()
    asyncio.run(Spool(pool, objects=8, nbytes=9000).put(store, patch(0), body(), 3000, sender="a", run="math"))
    assert store.objects == {patch(0): b"xyz" * 1000}


@pytest.mark.parametrize("came", [99, 101])
def test_a_body_of_another_length_than_was_announced_is_not_stored(pool: ThreadPoolExecutor, came: int) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"x" * came

    store = DictStore()
    spool = Spool(pool, objects=8, nbytes=1000)
    with pytest.raises(InvalidRequest, match="100 bytes were announced"):
        asyncio.run(spool.put(store, patch(0), body(), 100, sender="a", run="math"))
    assert store.objects == {}


def test_a_disk_that_is_full_is_no_defect(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"x"

    monkeypatch.setattr(module, "temporary_folder", lambda: tmp_path / "gone")
    spool = Spool(pool, objects=8, nbytes=1000)
    with pytest.raises(StoreUnavailable, match="gone"):
        asyncio.run(spool.put(DictStore(), patch(0), body(), 1, sender="a", run="math"))
