"""A trainer that shares a base and collectors beside it, call by call, in every order with three changes of turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from blake3 import blake3

from pulse_registry.bases.collector import BaseCollector
from pulse_registry.bases.sharing import share
from pulse_registry.format import keys
from pulse_registry.store import MOST_WHOLE_BYTES, Body, ByteRange, Store, WrapperStore
from pulse_schemas import KeyframeRef, ObjectRef
from tests.support.records import LAYOUT, DictStore
from tests.support.waiting import HANG_S

HOUR = 3600.0
FILES = {"model.safetensors": b"weights", "model.safetensors.index.json": b"{}"}


def item(name: str) -> ObjectRef:
    return ObjectRef(key=f"qwen/{name}", size=len(FILES[name]), blake3=blake3(FILES[name]).hexdigest())


KEYFRAME = KeyframeRef(version=0, index=item("model.safetensors.index.json"), shards=(item("model.safetensors"),))


class Actor:
    """A thread that makes one call of its store whenever it is told to."""

    def __init__(self, act: Callable[[Store], Any], store: Store) -> None:
        self.result: Any = None
        self.over = False
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(act, Paced(store, self._turn)), daemon=True)
        self._thread.start()
        assert self._done.acquire(timeout=HANG_S)  # before its first call

    def step(self) -> bool:
        """Let it make its next call; tell whether it had one to make."""
        if self.over:
            return False
        self._go.release()
        assert self._done.acquire(timeout=HANG_S)
        return True

    def finish(self) -> None:
        while self.step():
            pass
        self._thread.join(HANG_S)

    def _turn(self) -> None:
        self._done.release()
        assert self._go.acquire(timeout=HANG_S)

    def _run(self, act: Callable[[Store], Any], store: Store) -> None:
        try:
            self.result = act(store)
        finally:
            self.over = True
            self._done.release()


class Paced(WrapperStore):
    """Waits for its turn before each call."""

    def __init__(self, store: Store, turn: Callable[[], None]) -> None:
        super().__init__(store)
        self._turn = turn

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        self._turn()
        return super().get(key, byte_range, max_bytes=max_bytes)

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        content = b"".join(map(bytes, data)) if not isinstance(data, bytes) else data  # its own reads come before it
        self._turn()
        super().put(key, content, if_absent=if_absent)

    def exists(self, key: str) -> bool:
        self._turn()
        return super().exists(key)

    def size(self, key: str) -> int:
        self._turn()
        return super().size(key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        self._turn()
        return super().list(prefix, after)

    def folders(self, prefix: str, after: str | None = None) -> Iterator[str]:
        self._turn()
        return super().folders(prefix, after)

    def delete(self, key: str) -> None:
        self._turn()
        super().delete(key)


class Root:
    """A small root with a keyframe to share, and a base that nobody refers to: open, or closed long ago."""

    def __init__(self, *, closed: bool) -> None:
        self.now = datetime(2026, 1, 2, tzinfo=UTC)
        self.store = DictStore(lambda: self.now)
        for name, data in FILES.items():
            self.store.put(f"qwen/{name}", data)
        self.base = self.trainer(self.store, "gone")
        self.store.delete(f"gone/{keys.reference_key(self.base)}")
        if closed:
            self.collector(self.store)
        self.wait()

    def wait(self) -> None:
        self.now += timedelta(hours=2)

    def trainer(self, store: Store, run: str = "math") -> str:
        return share(store, run, store, LAYOUT, "f" * 32, KEYFRAME).base

    def collector(self, store: Store) -> None:
        BaseCollector(store).collect(HOUR, dry_run=False)

    def both(self, store: Store) -> None:
        """Look twice, with the grace time between: what is open is closed, and then deleted."""
        self.collector(store)
        self.wait()
        self.collector(store)

    def check(self, base: str) -> None:
        """What the trainer was told that its record may name is there, and stays."""
        for _ in range(2):
            assert {name: self.store.get(keys.base_key(base, name)) for name in FILES} == FILES
            self.wait()
            self.collector(self.store)


@pytest.mark.slow
@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("first", ["trainer", "collector"])
def test_what_a_run_was_told_to_name_is_there_whoever_is_paused_when(first: str, *, closed: bool) -> None:
    schedules, before = 0, 0
    while True:
        then, more = 0, False
        while True:
            root = Root(closed=closed)
            with ExitStack() as stack:
                trainer, collector = Actor(root.trainer, root.store), Actor(root.both, root.store)
                stack.callback(trainer.finish)
                stack.callback(collector.finish)
                one, other = (trainer, collector) if first == "trainer" else (collector, trainer)
                more = all(one.step() for _ in range(before))
                went = all(other.step() for _ in range(then))
                one.finish()
                other.finish()
            root.check(trainer.result)
            schedules, then = schedules + 1, then + 1
            if not went:
                break
        before += 1
        if not more:
            break
    assert schedules > 50
