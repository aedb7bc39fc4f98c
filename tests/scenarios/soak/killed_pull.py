"""Runs `pulse pull` in a forked process that kills itself at the n-th of its steps; one line of stdin a pull.

Steps are the two sides of every store call and of every file operation of the checkpoint's writer, the middle of those
that write, and every write of cells. In: ``<n> <arguments, as JSON>``; out: ``killed`` or ``done <steps>``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulse_registry.cli.pull
import pulse_registry.cli.session
from pulse_kernels import get_backend
from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.cli import main
from pulse_registry.store import MOST_WHOLE_BYTES, Body, ByteRange, Store, WrapperStore, open_store
from pulse_registry.weights.arrays import Weights


class Steps:
    """Counts steps, and kills the process at one of them."""

    def __init__(self) -> None:
        self.count = 0
        self.last = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.count += 1
            if self.count == self.last:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self()
        result = call(*arguments, **named)
        self()
        return result


step = Steps()


class SteppedStore(WrapperStore):
    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        data: bytes = step.around(super().get, key, byte_range, max_bytes=max_bytes)
        return data

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        step.around(super().put, key, data, if_absent=if_absent)

    def exists(self, key: str) -> bool:
        return bool(step.around(super().exists, key))

    def size(self, key: str) -> int:
        return int(step.around(super().size, key))

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        keys: Iterator[str] = step.around(super().list, prefix, after)
        return keys

    def delete(self, key: str) -> None:
        step.around(super().delete, key)


class SteppedFiles(FileOperations):
    def __init__(self, meter: object = None) -> None:
        pass

    def make_folder(self, folder: Path) -> None:
        step.around(super().make_folder, folder)

    def copy(self, source: Path, target: Path) -> int:
        step()
        target.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
        step()
        target.unlink()
        copied = super().copy(source, target)
        step()
        return copied

    def create(self, path: Path, head: bytes, size: int) -> int:
        step()
        path.write_bytes(head[: len(head) // 2])
        step()
        path.unlink()
        made = super().create(path, head, size)
        step()
        return made

    def write(self, path: Path, data: bytes) -> None:
        step()
        path.write_bytes(data[: len(data) // 2])
        step()
        super().write(path, data)
        step()

    def sync(self, path: Path) -> None:
        step.around(super().sync, path)

    def sync_folder(self, folder: Path) -> None:
        step.around(super().sync_folder, folder)

    def replace(self, source: Path, target: Path) -> None:
        step.around(super().replace, source, target)

    def remove(self, path: Path) -> None:
        step.around(super().remove, path)


def stepped_store(roots: list[str], *_: object, **__: object) -> Store:
    return SteppedStore(open_store(*roots))


def stepped(method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: step.around(method, *arguments)


def serve() -> None:
    pulse_registry.cli.session.connect_roots = stepped_store  # type: ignore[attr-defined]
    pulse_registry.cli.pull.MeteredFiles = SteppedFiles  # type: ignore[attr-defined,assignment]
    Weights.scatter = stepped(Weights.scatter)  # type: ignore[method-assign]
    Weights.fill = stepped(Weights.fill)  # type: ignore[method-assign]
    get_backend("auto").warm_up(2)  # here, or every pull would load them
    for line in sys.stdin:
        number, _, arguments = line.partition(" ")
        assert threading.active_count() == 1  # or a fork could not run
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            step.last = int(number)
            code = main(json.loads(arguments))
            os.write(writing, f"{code} {step.count}".encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            said = answer.read()
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        outcome, _, steps = said.partition(" ")
        print("killed" if killed else f"done {steps}" if outcome == "0" else f"failed {said}", flush=True)


if __name__ == "__main__":
    serve()
