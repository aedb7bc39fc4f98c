"""A slow link: a TCP proxy with a bandwidth that all its connections share, and a delay.

``python -m benchmarks.link HOST PORT --mbit 200 --delay-ms 25`` runs one in a process of its own (so that it takes no
part of the measured process' time), prints its port and ends with its standard input. Each direction has a bandwidth
of its own. A connection costs a round trip before it carries anything, as TCP's handshake does; TCP's slow start and
losses are not simulated.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

_CHUNK = 128 << 10
_AHEAD = 256
"""Chunks of a connection that are on the link at once, at most: more than any link here holds."""
BURST_S = 0.004
"""What a bucket holds: timers are late by a millisecond or two, which is made up for."""


@dataclass(frozen=True, slots=True)
class Link:
    """What a link is like: megabits a second in each direction, and the delay one way."""

    name: str
    mbit: float
    delay_ms: float


class Bucket:
    """A token bucket: says when bytes have left, one after the other, at a given rate."""

    def __init__(
        self, bytes_per_s: float, burst_s: float = BURST_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._burst_s, self._clock = bytes_per_s, burst_s, clock
        self._free = 0.0

    def take(self, nbytes: int) -> float:
        """Return the time at which bytes that queue up now have left."""
        self._free = max(self._clock() - self._burst_s, self._free) + nbytes / self._rate
        return self._free


class LinkProxy:
    """Passes connections on to a server over a link; runs in the loop that ``serve`` is awaited in."""

    def __init__(self, host: str, port: int, link: Link) -> None:
        self._target = (host, port)
        self._delay_s = link.delay_ms / 1e3
        self._up, self._down = (Bucket(link.mbit * 125_000) for _ in range(2))
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, started: Callable[[int], None], stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set; ``started`` is told the port."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=4 * _CHUNK)
        started(server.sockets[0].getsockname()[1])
        await stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        upstream: asyncio.StreamWriter | None = None
        try:
            await asyncio.sleep(2 * self._delay_s)
            answers, upstream = await asyncio.open_connection(*self._target, limit=4 * _CHUNK)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._carry(reader, upstream, self._up))
                group.create_task(self._carry(answers, writer, self._down))
        except* (OSError, asyncio.CancelledError):
            pass  # either end is gone, or the link is: both ends are closed below
        finally:
            for end in (writer, upstream):
                if end is not None:
                    end.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bucket: Bucket) -> None:
        """Pass one direction on; its end, too."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_AHEAD)

        async def deliver() -> None:
            while True:
                due, data = await under_way.get()
                await _until(due)
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(deliver())
            data = b"-"
            while data:
                data = await reader.read(_CHUNK)
                left = bucket.take(len(data))
                await _until(left)
                await under_way.put((left + self._delay_s, data))


@contextmanager
def over(endpoint: str, link: Link) -> Iterator[str]:
    """Run a link to an HTTP endpoint in a process of its own; yield the URL to use in place of the endpoint's."""
    where = urlsplit(endpoint)
    command = [sys.executable, "-m", "benchmarks.link", str(where.hostname), str(where.port)]
    command += ["--mbit", str(link.mbit), "--delay-ms", str(link.delay_ms)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as child:
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("the link's process has no pipes")
        try:
            port = child.stdout.readline().strip()
            if not port:
                raise RuntimeError("the link's process ended at once")
            yield f"http://127.0.0.1:{port}"
        finally:
            child.stdin.close()


async def _until(due: float) -> None:
    left = due - time.monotonic()
    if left > 0:
        await asyncio.sleep(left)


async def _serve(host: str, port: int, link: Link) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait_for_end() -> None:
        sys.stdin.read()
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=wait_for_end, daemon=True).start()
    await LinkProxy(host, port, link).serve(lambda found: print(found, flush=True), stop)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a slow link to a TCP server until standard input ends.")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--mbit", type=float, required=True)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    args = parser.parse_args()
    asyncio.run(_serve(args.host, args.port, Link("", args.mbit, args.delay_ms)))


if __name__ == "__main__":
    main()
