"""A slow link passes on what it is given; the benchmark over it runs, at a size whose times mean nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.link import Bucket, Link, LinkProxy, over
from benchmarks.links import BARE, OWN, links_document
from benchmarks.push_pull import CODERS
from benchmarks.synthetic import synthetic_states
from tests.support.clock import Clock
from tests.support.servers import S3Server


def test_bytes_leave_one_after_the_other_at_the_rate() -> None:
    clock = Clock(100.0)
    bucket = Bucket(1000.0, burst_s=0.0, clock=clock)
    assert [bucket.take(500), bucket.take(250)] == [100.5, 100.75]
    clock.now = 110.0
    assert bucket.take(1000) == 111.0


def test_a_bucket_makes_up_for_lateness_within_its_burst_alone() -> None:
    clock = Clock(100.0)
    bucket = Bucket(1000.0, burst_s=0.1, clock=clock)
    first = bucket.take(1000)
    assert first == pytest.approx(100.9)
    clock.now = first + 0.05  # late by less than the burst: nothing is lost
    assert bucket.take(1000) == pytest.approx(first + 1.0)
    clock.now = 200.0
    assert bucket.take(1000) == pytest.approx(200.9)


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it got once its client has sent all of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer(connection: socket.socket) -> None:
            with connection:
                data = b"".join(iter(lambda: connection.recv(1 << 16), b""))
                connection.sendall(data)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,)).start()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_both_directions_of_all_connections_carry_every_byte_and_the_end(echo: int) -> None:
    sent = [np.random.default_rng(number).bytes(size) for number, size in enumerate((0, 1, 70_000, 1_000_003))]

    async def through(port: int, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        writer.write_eof()
        found = await reader.read()
        writer.close()
        await writer.wait_closed()
        return found

    async def run() -> list[bytes]:
        stop, port = asyncio.Event(), asyncio.Future[int]()
        proxy = LinkProxy("127.0.0.1", echo, Link("fast", 10_000, 0.1))
        serving = asyncio.create_task(proxy.serve(port.set_result, stop))
        reached = await port
        found = await asyncio.gather(*(through(reached, data) for data in sent))
        stop.set()
        await serving
        return found

    assert asyncio.run(run()) == sent


def test_a_link_in_a_process_of_its_own_ends_with_its_user(echo: int) -> None:
    with over(f"http://127.0.0.1:{echo}", Link("fast", 10_000, 0.0)) as endpoint:
        port = int(endpoint.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"hello")
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(10) == b"hello"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.slow
def test_every_way_brings_every_step_to_the_worker(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in moto.environment.items():
        monkeypatch.setitem(os.environ, name, value)
    links = [Link("with a delay", 1_000, 0.5)]
    states = synthetic_states(60_000, steps=2, seed=5)
    document = links_document(states, links, moto, threads=1, repeats=2, say=lambda _: None)
    rows = {row["key"]: row["value"] for row in document["rows"]}
    for link in document["links"]:
        assert set(link["ways"]) == {*CODERS, OWN, BARE, "XOR + zstd-1", "full sync"}
        for name, found in link["ways"].items():
            assert len(found["seconds"]) == 2
            assert rows[f"{link['name']}.{name}"] > 0
        full, gap = link["ways"]["full sync"]["bytes"], link["ways"]["gap"]["bytes"]
        assert all(states.nbytes < size < 1.1 * states.nbytes for size in full)
        assert all(size < states.nbytes // 10 for size in gap)
        assert f"{link['name']}.against.{BARE}" in rows
