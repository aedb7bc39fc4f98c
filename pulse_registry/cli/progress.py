"""Progress on a terminal: bytes, rate and time of what takes over a second."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.quoting import printable
from pulse_registry.store import MOST_WHOLE_BYTES, Body, Buffer, ByteRange, Store, Stream, WrapperStore, body_size

if TYPE_CHECKING:
    from rich.progress import Progress

_PATIENCE_SECONDS = 1.0


class Meter:
    """Counts bytes that moved, and shows them after a second. A context manager; thread-safe.

    Nothing is shown where stderr is no terminal, or ``quiet``.
    """

    def __init__(self, title: str, *, quiet: bool, total: int | None = None) -> None:
        self.moved = 0
        self._title = printable(title, sys.stderr.encoding)
        self._total = total
        self._shown = not quiet and sys.stderr.isatty()
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._timer = threading.Timer(_PATIENCE_SECONDS, self._show)
        self._timer.daemon = True

    def add(self, nbytes: int) -> None:
        """Count bytes."""
        with self._lock:
            self.moved += nbytes
            if self._progress is not None:
                self._progress.update(self._progress.task_ids[0], completed=self.moved)

    def __enter__(self) -> Self:
        """Begin to wait."""
        if self._shown:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the display away."""
        self._timer.cancel()
        with self._lock:
            self._shown = False
            if self._progress is not None:
                self._progress.stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TransferSpeedColumn,
        )

        title = TextColumn("{task.description}", markup=False)
        columns = (title, BarColumn(), DownloadColumn(), TransferSpeedColumn())
        progress = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
        progress.add_task(self._title, total=self._total, completed=self.moved)
        with self._lock:
            if self._shown:
                self._progress = progress
                progress.start()


class MeteredStore(WrapperStore):
    """Tells a meter of all bytes that go through a store."""

    def __init__(self, store: Store, meter: Meter) -> None:
        """Wrap a store."""
        super().__init__(store)
        self._meter = meter

    def get(self, key: str, byte_range: ByteRange | None = None, *, max_bytes: int = MOST_WHOLE_BYTES) -> bytes:
        """Return an object's bytes, or those of a range, and count them."""
        data = super().get(key, byte_range, max_bytes=max_bytes)
        self._meter.add(len(data))
        return data

    def get_into(self, key: str, byte_range: ByteRange, buffer: Buffer) -> None:
        """Read a range into a buffer, and count its bytes: see Store.get_into."""
        self._store.get_into(key, byte_range, buffer)
        self._meter.add(byte_range[1] - byte_range[0])

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object, and count its bytes: those of a stream as they are made."""
        if isinstance(data, Stream):
            super().put(key, _MeteredStream(data, self._meter.add), if_absent=if_absent)
            return
        super().put(key, data, if_absent=if_absent)
        self._meter.add(body_size(data))


class MeteredFiles(FileOperations):
    """Tells a meter of the bytes that are copied within a checkpoint's folder."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def copy(self, source: Path, target: Path) -> int:
        """Copy a file's bytes to a new file, and count them."""
        copied = super().copy(source, target)
        self._meter.add(os.fstat(copied).st_size)
        return copied


class _MeteredStream(Stream):
    def __init__(self, stream: Stream, add: Callable[[int], None]) -> None:
        self.nbytes = stream.nbytes
        self._stream = stream
        self._add = add

    def __iter__(self) -> Iterator[Buffer]:
        for part in self._stream:
            yield part
            self._add(len(part) if not isinstance(part, memoryview) else part.nbytes)
