"""Pulls a run into nothing, and dies by SIGKILL when it asks for the n-th piece: ``<root> <spool> <n>``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from pulse_registry.options import ComputeOptions, Options, PullOptions
from pulse_registry.registry import Registry
from pulse_registry.store import MOST_WHOLE_BYTES, ByteRange, FileStore, WrapperStore


class Deadly(WrapperStore):
    """A store whose objects are no files of this machine, and whose n-th read of a shard kills the process."""

    def __init__(self, root: Path, nth: int) -> None:
        super().__init__(FileStore(root))
        self._left = nth
        self._lock = threading.Lock()

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        if key.endswith(".safetensors"):
            with self._lock:
                self._left -= 1
                if not self._left:
                    os.kill(os.getpid(), signal.SIGKILL)
        return super().get(key, byte_range, max_bytes=max_bytes)


def main() -> None:
    root, spool, nth = sys.argv[1:]
    with Registry(
        Deadly(Path(root), int(nth)),
        "run",
        Options(pull=PullOptions(spool=Path(spool)), compute=ComputeOptions(backend="reference")),
    ) as registry:
        registry.load()


if __name__ == "__main__":
    main()
