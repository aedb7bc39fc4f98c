"""GETs at a steady pace, whatever becomes of the ones before: ``python -m benchmarks.service.steady URL TOKEN PACE``.

It ends when its standard input does, with a JSON document of how long each took, from the moment at which it was due:
a service that stops for a second is late for all that were due in it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_CONNECTIONS = 8
_ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Steady:
    """Milliseconds of each answer, sorted; ``failed``: how many were errors, or never came."""

    milliseconds: tuple[float, ...]
    failed: int

    def at(self, share: float) -> float:
        """Return the time in which this share of the requests was answered, in ms; one that failed took for ever."""
        found, number = self.milliseconds, int(share * (len(self.milliseconds) + self.failed))
        return found[min(number, len(found) - 1)] if found and number <= len(found) else float("inf")


async def _steady(url: str, token: str, pace: float) -> dict[str, Any]:
    parts = urlsplit(url)
    request = f"GET {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer {token}\r\n\r\n".encode()
    due: asyncio.Queue[float] = asyncio.Queue()
    took: list[float] = []
    failed = 0

    async def connection() -> None:
        nonlocal failed
        while True:
            first = await due.get()
            try:
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            except OSError:
                failed += 1
                continue
            try:
                while True:
                    async with asyncio.timeout(_ANSWER_S):
                        await _ask(reader, writer, request)
                    took.append((time.perf_counter() - first) * 1e3)
                    first = await due.get()
            except (OSError, EOFError, ValueError):
                failed += 1
            finally:
                writer.close()

    async def clock() -> None:
        began, number = time.perf_counter(), 0
        while True:
            number += 1
            await asyncio.sleep(began + number / pace - time.perf_counter())
            due.put_nowait(began + number / pace)

    tasks = [asyncio.create_task(work()) for work in (*[connection] * _CONNECTIONS, clock)]
    await asyncio.to_thread(sys.stdin.read)
    tasks.pop().cancel()
    give_up = time.perf_counter() + _ANSWER_S
    while due.qsize() and time.perf_counter() < give_up:
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    return {"milliseconds": sorted(took), "failed": failed + due.qsize()}


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise ValueError(head)
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.partition(b":")[2]))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_steady(sys.argv[1], sys.argv[2], float(sys.argv[3])))), flush=True)
