"""What goes over the long way: one mirror for a region, beside hosts that each read the far bucket. Counted, not timed.

Versions are pushed and followed one by one, by hosts that begin with the first of them. Bytes are those of all answers
with a body: objects, records and what else is read; requests are all that are made.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from benchmarks.states import Live, States
from pulse_registry.mirror import Mirror
from pulse_registry.options import Options
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.store import MOST_WHOLE_BYTES, Buffer, ByteRange, MemoryStore, Store, WrapperStore

RUN = "bench"


@dataclass(frozen=True, slots=True)
class Egress:
    """Bytes that left the source's region, and requests to it."""

    nbytes: int
    requests: int

    def since(self, before: Egress) -> Egress:
        """Return what came after an earlier count."""
        return Egress(self.nbytes - before.nbytes, self.requests - before.requests)


@dataclass(frozen=True, slots=True)
class Followed:
    """What left the region while versions were followed, and the bytes that these stored."""

    stored: int
    mirror: Egress
    hosts: Egress


class Billed(WrapperStore):
    """Counts what a store gives out, and its calls."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._lock = threading.Lock()
        self._nbytes = self._requests = 0

    @property
    def egress(self) -> Egress:
        """What it came to."""
        return Egress(self._nbytes, self._requests)

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        self._count(0)  # a key that is not there costs a request, too
        data = super().get(key, byte_range, max_bytes=max_bytes)
        self._count(len(data), 0)
        return data

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        self._count(byte_range[1] - byte_range[0])
        self._store.get_into(key, byte_range, buffer)

    def exists(self, key: str) -> bool:
        self._count(0)
        return super().exists(key)

    def size(self, key: str) -> int:
        self._count(0)
        return super().size(key)

    def modified(self, key: str) -> datetime:
        self._count(0)
        return super().modified(key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        self._count(0)
        return super().list(prefix, after)

    def _count(self, nbytes: int, requests: int = 1) -> None:
        with self._lock:
            self._nbytes += nbytes
            self._requests += requests


def measure_egress(states: States, hosts: int) -> Followed:
    """Push all steps of the states; a mirror follows them, and ``hosts`` hosts that read the source themselves."""
    home = MemoryStore(uuid.uuid4().hex)
    by_mirror, by_hosts = Billed(home), Billed(home)
    live, stored = Live(states), 0
    with Registry(home, RUN, Options(push=PushOptions(dtype="keep", keyframe_share=1e9))) as trainer:
        trainer.push(0, live.model())
        readers = [Registry(by_hosts, RUN) for _ in range(hosts)]
        held = [reader.load(framework="numpy") for reader in readers]
        with Mirror(by_mirror, MemoryStore(uuid.uuid4().hex), RUN) as mirror:
            mirror.catch_up()
            before = by_mirror.egress, by_hosts.egress
            for step in range(1, len(states.steps) + 1):
                live.go(step)
                stored += trainer.push(step, live.model()).nbytes
                mirror.step(tidy=False)  # as `pulse mirror --follow` does for most records
                for reader, weights in zip(readers, held, strict=True):
                    reader.pull(into=weights)
        for reader in readers:
            reader.close()
    return Followed(stored, by_mirror.egress.since(before[0]), by_hosts.egress.since(before[1]))
