"""Parked waiters: thousands of long polls, and how long after a push the last of them knows."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Woken:
    """How long after `push` was called each waiter had its answer, in milliseconds, sorted; how many never had one."""

    milliseconds: tuple[float, ...]
    lost: int

    def percentile(self, share: float) -> float:
        """Return the time within which this share of the waiters was woken."""
        return self.milliseconds[min(len(self.milliseconds) - 1, int(share * len(self.milliseconds)))]


def wake(url: str, token: str, count: int, version: int, push: Callable[[], None], parked: Callable[[], int]) -> Woken:
    """Park ``count`` connections until a version over ``version`` is there, push it, and time the answers.

    Args:
        url: of a run's latest version, without a query.
        token: of a reader.
        count: of connections.
        version: the newest one before the push.
        push: commits the next version.
        parked: asks the service how many requests wait there now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 256:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 1024), hard))
    return asyncio.run(_wake(url, token, count, version, push, parked))


async def _wake(
    url: str, token: str, count: int, version: int, push: Callable[[], None], parked: Callable[[], int]
) -> Woken:
    parts = urlsplit(url)
    request = (
        f"GET {parts.path}?after={version}&wait=60 HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Authorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    ).encode()
    gate = asyncio.Semaphore(64)  # connections on their way at a time: a backlog that overflows is no waiter

    async def wait() -> tuple[float, bytes]:
        async with gate:
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(request)
            await writer.drain()
        try:
            answer = await asyncio.wait_for(reader.read(), 90)
            return time.perf_counter(), answer
        finally:
            writer.close()

    waiters = [asyncio.create_task(wait()) for _ in range(count)]
    give_up = time.perf_counter() + 60
    while await asyncio.to_thread(parked) < count:
        if time.perf_counter() > give_up:
            raise RuntimeError(f"only {parked()} of {count} requests were parked after a minute")
        await asyncio.sleep(0.1)
    began = time.perf_counter()
    await asyncio.to_thread(push)
    answers = await asyncio.gather(*waiters, return_exceptions=True)
    wanted = f'"version":{version + 1}'.encode()
    good = [a for a in answers if isinstance(a, tuple) and a[1].startswith(b"HTTP/1.1 200 ") and wanted in a[1]]
    return Woken(tuple(sorted((at - began) * 1e3 for at, _ in good)), count - len(good))
