"""A program that attacks a service in many ways at once, as fast as it can: ``python -m benchmarks.service.attackers``.

It reads its `Target` from its first argument, as JSON, and ends when its standard input does, with a JSON document of
what became of the requests of each attack: how many were answered with which status ("-": with none).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import Any

from blake3 import blake3

from pulse_registry.format import keys
from pulse_schemas import Lease

ATTACKS = ("trailers", "urls", "layout", "bodies", "objects", "reports", "leases", "junk")
HOSTILE_LAYOUT = (
    b'{"format":"pulse-layout/1","tensors":[{"dtype":"BF16","name":"w","shape":[4611686018427387904]}],"tied":{}}'
)
"""Valid JSON, and of more cells than any machine has bytes."""

_PIECE = 64 << 10
_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Target:
    """What is attacked, with which tokens, for which run; and how hard.

    Attributes:
        host, port: of the service.
        read, publish: tokens for ``run`` alone.
        run: of which a hostile layout is in the bucket.
        senders: of each attack, at the same time.
        stalled: bodies of ``body_bytes`` that are sent but for their end; as many objects trickle.
        body_bytes: the longest body of a record.
        names: workers and leases that are made up.
        attacks: which of them, with commas between.
    """

    host: str
    port: int
    read: str
    publish: str
    run: str
    senders: int = 4
    stalled: int = 40
    body_bytes: int = 8 << 20
    names: int = 1_500
    attacks: str = ",".join(ATTACKS)


class Attackers:
    """The attacks; each is a coroutine that goes on for ever."""

    def __init__(self, target: Target) -> None:
        """Prepare; nothing is sent yet."""
        self._target, self.answers = target, Counter[tuple[str, str]]()
        self._begun: set[str] = set()
        self._base = f"/v1/runs/{target.run}"

    async def run(self, until: Awaitable[object]) -> None:
        """Attack until something has happened, and each attack has begun: on a busy machine that may be later."""
        target = self._target
        attacks = {name: attack for name, attack in self._attacks().items() if name in target.attacks.split(",")}
        tasks = [
            asyncio.create_task(self._again(attack, number))
            for name, attack in attacks.items()
            for number in range(target.stalled if name in ("bodies", "objects") else target.senders)
        ]
        await until
        while not self._begun.issuperset(attacks):
            await asyncio.sleep(_AGAIN_S)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    def _attacks(self) -> dict[str, Callable[[int], Coroutine[Any, Any, None]]]:
        return {
            "trailers": self._trailers,
            "urls": self._urls,
            "layout": self._layout,
            "bodies": self._body,
            "objects": self._object,
            "reports": self._reports,
            "leases": self._leases,
            "junk": self._junk,
        }

    async def _again(self, attack: Callable[[int], Coroutine[Any, Any, None]], number: int) -> None:
        while True:
            try:
                await attack(number)
            except (OSError, EOFError, ValueError):
                await asyncio.sleep(_AGAIN_S)

    async def _trailers(self, number: int) -> None:
        """Send a body of nothing, and lines after it, without a token."""

        async def lines(writer: asyncio.StreamWriter) -> None:
            writer.write(b"0\r\n")
            for line in range(10_000):
                writer.write(b"x-%d: %s\r\n" % (line, b"y" * 8000))
                await writer.drain()

        await self._send("trailers", "POST", f"{self._base}/log", "", lines, {"transfer-encoding": "chunked"})

    async def _urls(self, number: int) -> None:
        """Ask for URLs of keys that are none, each of the wrong type: as many as were ever let in, and fewer."""
        for nbytes in (self._target.body_bytes - _PIECE, 510 << 10, 30 << 10):
            body = b'{"keys":[' + b"1," * (nbytes // 2) + b"1]}"
            await self._post("urls", "POST", f"{self._base}/urls", self._target.read, body)

    async def _layout(self, number: int) -> None:
        """Store a layout that is too large for any machine, and have its size looked up."""
        target, layout_id = self._target, blake3(HOSTILE_LAYOUT).hexdigest()
        await self._post("layout", "PUT", f"{self._base}/layouts/{layout_id}", target.publish, HOSTILE_LAYOUT)
        await self._post("layout", "GET", self._base, target.read, b"")
        await self._post("layout", "GET", "/v1/runs", target.read, b"")

    async def _body(self, number: int) -> None:
        """Send a record but for its last byte."""
        target = self._target

        async def stall(writer: asyncio.StreamWriter) -> None:
            for _ in range(target.body_bytes // _PIECE - 1):
                writer.write(b" " * _PIECE)
                await writer.drain()

        length = {"content-length": str(target.body_bytes)}
        token = target.publish if number % 4 else target.read  # one in four has not even the scope
        await self._send("bodies", "POST", f"{self._base}/log", token, stall, length)

    async def _object(self, number: int) -> None:
        """Send an object a byte at a time."""

        async def trickle(writer: asyncio.StreamWriter) -> None:
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.2)

        key = keys.patch_key(number, number + 1, f"{number:032x}")
        length = {"content-length": str(1 << 30)}
        await self._send("objects", "PUT", f"{self._base}/{key}", self._target.publish, trickle, length)

    async def _reports(self, number: int) -> None:
        """Make up workers that found all their objects damaged, and have them listed."""
        target = self._target
        avoided = [f"objects/{'x' * 900}-{number}" for number in range(16)]
        report = {"version": 0, "digest": "0" * 32, "phases": {"fetch": 1.0}, "nbytes": 1, "avoided": avoided}
        body = json.dumps(report).encode()
        for name in range(number, target.names, target.senders):
            await self._post("reports", "PUT", f"{self._base}/workers/w{name}", target.read, body)
            if name % 20 == 0:
                await self._post("reports", "GET", f"{self._base}/workers", target.read, b"")

    async def _leases(self, number: int) -> None:
        """Make up readers, whose leases the collector has to read one by one."""
        for name in range(number, self._target.names, self._target.senders):
            lease = Lease(run=self._target.run, reader=f"r{name}", version=0, seconds=600_000)
            path = f"{self._base}/leases/r{name}"
            await self._post("leases", "PUT", path, self._target.read, lease.seal())

    async def _junk(self, number: int) -> None:
        """Send what nobody may, without a token."""
        await self._post("junk", "POST", f"{self._base}/log", "", b"x" * 1000)

    async def _post(self, attack: str, method: str, path: str, token: str, body: bytes) -> None:
        async def whole(writer: asyncio.StreamWriter) -> None:
            writer.write(body)
            await writer.drain()

        await self._send(attack, method, path, token, whole, {"content-length": str(len(body))})

    async def _send(
        self,
        attack: str,
        method: str,
        path: str,
        token: str,
        body: Callable[[asyncio.StreamWriter], Coroutine[Any, Any, None]],
        headers: dict[str, str],
    ) -> None:
        """Send a request over a connection of its own, and read its answer; counted whatever became of it."""
        status = "-"
        reader, writer = await asyncio.open_connection(self._target.host, self._target.port)
        self._begun.add(attack)
        try:
            authorization = {"authorization": f"Bearer {token}"} if token else {}
            lines = {"host": "x", "connection": "close", **authorization, **headers}
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode())
            sending = asyncio.create_task(body(writer))
            try:
                first = await reader.readline()
                status = first.split(b" ")[1].decode() if first else "-"
                while await reader.read(1 << 20):
                    pass
            finally:
                sending.cancel()
                await asyncio.wait((sending,))
                if not sending.cancelled():
                    sending.exception()
        finally:
            self.answers[attack, status] += 1
            writer.close()


async def _attack(target: Target) -> dict[str, dict[str, int]]:
    attackers = Attackers(target)
    await attackers.run(asyncio.to_thread(sys.stdin.read))
    found: dict[str, dict[str, int]] = {}
    for (attack, status), count in sorted(attackers.answers.items()):
        found.setdefault(attack, {})[status] = count
    return found


def argument(target: Target) -> str:
    """Return what the program reads."""
    return json.dumps(asdict(target))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_attack(Target(**json.loads(sys.argv[1]))))), flush=True)
