"""Processes of one host that pull through one cache: a script, as a process to fork must have no threads.

crowd ROOT CACHE LEDGER COUNT   so many workers pull the newest version at the same moment
kill ROOT CACHE LEDGER FIRST STEP   kills a pull before its cache's n-th system call, for n = FIRST, FIRST + STEP, ...,
                                each with a cache of its own, and lets another one pull after it

Every read of an object from the store is a line in LEDGER, every worker's state digest one on the standard output.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pulse_registry.cache import CacheFolder, partial_object
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.registry import Registry
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange, FileStore, WrapperStore
from tests.support.groups import small_groups
from tests.support.registries import RUN, bits, garbage, small_model

RANGE_BYTES = 64
"""So that objects of a few hundred bytes have several ranges."""
CALLS = ("ftruncate", "pwrite", "pread", "preadv", "rename", "unlink", "utime", "posix_fallocate", "dup")


class Noted(WrapperStore):
    """A store whose objects are no files of this machine, and whose reads of objects are noted in a file."""

    def __init__(self, root: str, ledger: str) -> None:
        super().__init__(FileStore(root))
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        if "/objects/" in key:
            os.write(self._ledger, f"{json.dumps([key, byte_range])}\n".encode())
        return super().get(key, byte_range, max_bytes=max_bytes)


def pull(root: str, cache: str, ledger: str) -> str:
    """Pull the newest version as a new worker, and return its tensors' bytes as text."""
    into = garbage(small_model())
    folder = CacheFolder(Path(cache), 10**6)
    with Registry(
        Noted(root, ledger), RUN, Options(cache=folder, compute=ComputeOptions(backend="reference"))
    ) as registry:
        registry.pull(into=into)
    return json.dumps({name: found.hex() for name, found in bits(into).items()})


def crowd(root: str, cache: str, ledger: str, count: int) -> None:
    """Let workers pull at the same moment."""
    context = get_context("fork")
    start = context.Barrier(count)

    def work() -> None:
        start.wait()
        os.write(1, f"{pull(root, cache, ledger)}\n".encode())

    workers = [context.Process(target=work) for _ in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a worker failed")


def kill(root: str, cache: str, ledger: str, first: int, step: int) -> None:
    """Kill a pull at each of its calls, until it gets to its end."""
    for at in itertools.count(first, step):
        folder = f"{cache}/{at}"
        killed = _forked(lambda at=at, folder=folder: (_die_before(at), pull(root, folder, ledger)))
        found = _forked(lambda folder=folder: os.write(1, f"{pull(root, folder, ledger)}\n".encode()))
        if found or killed not in (0, signal.SIGKILL):
            raise SystemExit(f"at call {at}: {killed} {found}")
        if not killed:
            return


def _forked(work: Callable[[], Any]) -> int:
    """Do something in a process of its own, and return the signal or exit code that it ended with."""
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _die_before(at: int) -> None:
    """Kill this process before its call number `at`."""
    count, lock = itertools.count(), threading.Lock()

    def counted(name: str) -> Any:
        call = getattr(os, name)

        def step(*args: Any, **options: Any) -> Any:
            with lock:
                if next(count) == at:
                    os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return step

    for name in CALLS:
        setattr(os, name, counted(name))


def main(arguments: Sequence[str]) -> None:
    """Run one of the commands."""
    partial_object.RANGE_BYTES = RANGE_BYTES
    with small_groups():
        match arguments:
            case ["crowd", root, cache, ledger, count]:
                crowd(root, cache, ledger, int(count))
            case ["kill", root, cache, ledger, first, step]:
                kill(root, cache, ledger, int(first), int(step))
            case _:
                raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
