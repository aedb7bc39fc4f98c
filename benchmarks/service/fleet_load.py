"""The processes around a service with a fleet: ``python -m benchmarks.service.fleet_load trainers|crew|streams JSON``.

Each says "ready" when all of it is at work, ends when its standard input does, and prints then what it saw, as JSON.
Times are of the wall clock: all processes are on one machine.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

import pulse_registry

WAIT_S = 20
"""That a worker waits for news before it asks again, and reports that it lives."""
_OPENED = 64
_BUFFER = 4 << 10


def trainers(root: str, runs: list[str], every_s: float) -> dict[str, Any]:
    """Push into each run every so often, past the service; return when each version was made, and what failed."""
    made: list[tuple[str, int, str]] = []
    failed: list[str] = []
    done = threading.Event()
    begun = threading.Barrier(len(runs) + 1)

    def train(number: int) -> None:
        compute = pulse_registry.ComputeOptions(backend="reference")
        weights = {"w": np.zeros((64, 64), np.uint16)}
        with pulse_registry.open(root, run=runs[number], compute=compute) as registry:
            registry.push(0, weights)
            begun.wait()
            due = time.monotonic() + every_s * number / len(runs)
            step = 0
            while not done.wait(max(0.0, due - time.monotonic())):
                due += every_s
                step += 1
                weights["w"][step % 64, :3] += np.uint16(1 + step)
                try:
                    version = registry.version(registry.push(step, weights).version)
                    made.append((runs[number], version.version, version.created_at))
                except pulse_registry.PulseError as error:
                    failed.append(f"{type(error).__name__}: {error}"[:200])

    with ThreadPoolExecutor(len(runs)) as pool:
        work = [pool.submit(train, number) for number in range(len(runs))]
        begun.wait()
        _until_told()
        done.set()
        for one in work:
            one.result()
    return {"made": made, "failed": failed}


async def crew(url: str, token: str, runs: list[str], workers: int) -> dict[str, Any]:
    """Wait for versions of each run and report them, as so many workers do; return how many reports were taken."""
    parts = urlsplit(url)
    known = (f"host: {parts.netloc}", f"authorization: Bearer {token}")
    counts: dict[str, Any] = {"reports": 0, "versions": 0, "failed": 0}
    gate = asyncio.Semaphore(_OPENED)
    waiting = asyncio.Semaphore(0)

    async def work(number: int) -> None:
        run = runs[number % len(runs)]
        async with gate:
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)

        async def ask(method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
            head = (f"{method} /v1/runs/{run}/{path} HTTP/1.1", *known, f"content-length: {len(body)}", "", "")
            writer.write("\r\n".join(head).encode() + body)
            return await _answer(reader)

        newest, digest = -1, ""
        while True:
            path = "versions/latest" if newest < 0 else f"versions/latest?after={newest}&wait={WAIT_S}"
            if newest >= 0:
                waiting.release()
            status, body = await ask("GET", path)
            is_new = status == 200
            if is_new:
                told = json.loads(body)
                newest, digest = told["version"], told["digest"]
                counts["versions"] += 1
            report = {"version": newest, "digest": digest}
            if is_new:
                phases = {"route": 0.01, "fetch": 0.1, "decode": 0.05, "verify": 0.05, "apply": 0.02}
                report |= {"phases": phases, "nbytes": 400}
            reported, _ = await ask("PUT", f"workers/worker-{number:04d}", json.dumps(report).encode())
            counts["reports"] += reported == 204
            counts["failed"] += (status not in (200, 204)) + (reported != 204)

    async def worker(number: int) -> None:
        while True:
            try:
                await work(number)
            except (OSError, EOFError, ValueError):
                counts["failed"] += 1
                await asyncio.sleep(1.0)

    tasks = [asyncio.create_task(worker(number)) for number in range(workers)]
    await _taken(waiting, workers)
    counts |= dict.fromkeys(counts, 0)  # what came before all of them waited is no part of it
    began = time.monotonic()
    await asyncio.to_thread(_until_told)
    return await _ended(tasks, counts | {"seconds": time.monotonic() - began})


async def streams(url: str, token: str, readers: int, stalled: int) -> dict[str, Any]:
    """Read streams of all runs, and leave others unread; return when which version was told, and bytes, of each."""
    asked: dict[str, Any] = {"url": f"{url}/v1/events", "headers": {"Authorization": f"Bearer {token}"}}
    told: list[dict[str, Any]] = [{"nbytes": 0, "versions": [], "failed": 0} for _ in range(readers)]
    whole = asyncio.Semaphore(0)

    async def read(seen: dict[str, Any]) -> None:
        newest: dict[str, int] = {}
        async with (
            httpx.AsyncClient(timeout=None) as client,
            client.stream("GET", **asked) as answer,
        ):
            async for line in answer.aiter_lines():
                seen["nbytes"] += len(line) + 1
                if not line.startswith("data: "):
                    continue
                now, body = time.time(), json.loads(line.removeprefix("data: "))
                for run in body["runs"]:
                    version = -1 if run["latest"] is None else run["latest"]["version"]
                    if version > newest.get(run["run"], -2):
                        seen["versions"].append((run["run"], version, now))
                        newest[run["run"]] = version
                if len(newest) == body["total"]:
                    whole.release()
        seen["failed"] += 1  # it ended

    left = [_stalled(url, token) for _ in range(stalled)]
    tasks = [asyncio.create_task(read(seen)) for seen in told]
    begun = asyncio.create_task(_taken(whole, readers))
    await asyncio.wait((begun, *tasks), return_when=asyncio.FIRST_COMPLETED)
    if not begun.done():
        raise RuntimeError("a stream ended at once")
    for seen in told:
        seen["nbytes"], seen["versions"] = 0, []
    await asyncio.to_thread(_until_told)
    for one in left:
        one.close()
    return await _ended(tasks, {"streams": told})


def _stalled(url: str, token: str) -> socket.socket:
    """Ask for a stream, and read nothing of it."""
    parts = urlsplit(url)
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    one.connect((parts.hostname, parts.port))
    one.sendall(f"GET /v1/events HTTP/1.1\r\nhost: {parts.netloc}\r\nauthorization: Bearer {token}\r\n\r\n".encode())
    return one


async def _taken(places: asyncio.Semaphore, count: int) -> None:
    for _ in range(count):
        await places.acquire()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the status and the body of an answer."""
    lines = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    length = next((line.partition(b":")[2] for line in lines if line.startswith(b"content-length:")), b"0")
    return int(lines[0].split()[1]), await reader.readexactly(int(length))


async def _ended(tasks: list[asyncio.Task[None]], found: dict[str, Any]) -> dict[str, Any]:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return found


def _until_told() -> None:
    """Say that all is at work, and wait for the end."""
    print("ready", flush=True)
    sys.stdin.read()


WORK: dict[str, Callable[..., dict[str, Any] | Awaitable[dict[str, Any]]]] = {
    "trainers": trainers,
    "crew": crew,
    "streams": streams,
}

if __name__ == "__main__":
    result = WORK[sys.argv[1]](**json.loads(sys.argv[2]))
    with suppress(BrokenPipeError):
        print(json.dumps(result if isinstance(result, dict) else asyncio.run(result)), flush=True)  # type: ignore[arg-type]
