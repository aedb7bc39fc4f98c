"""Log queue: a line is handed over in a microsecond, and written by a thread of its own.

To make a line and to write it costs an event loop more than many an answer does; and a terminal or a pipe that takes
nothing would stop it altogether.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from typing import Any, Final, TextIO

MAX_WAITING: Final = 100_000
_BATCH_LINES: Final = 1_000
_FLUSH_S: Final = 0.4
"""Less than what is left of ten seconds when a stop that takes too long is ended by force."""

_CLOSE_S: Final = 5.0


class LogQueue(QueueHandler):
    """A handler that writes to a stream from a thread. While the stream takes nothing, lines wait, then are dropped.

    ``flush`` and ``close`` wait until all lines are written, but not for ever.
    """

    def __init__(self, stream: TextIO, formatter: logging.Formatter, *, max_waiting: int = MAX_WAITING) -> None:
        """Begin; ``max_waiting`` lines wait at most."""
        self._waiting: SimpleQueue[logging.LogRecord | _Mark | None] = SimpleQueue()
        super().__init__(self._waiting)
        self._max, self._dropped = max_waiting, 0
        batches = _Batches(stream, more=lambda: not self._waiting.empty())
        handler = logging.StreamHandler(batches)
        handler.setFormatter(formatter)
        self._writer = _Writer(self._waiting, handler, batches)
        self._writer.start()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return a record as it is: the thread formats it."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Hand a record over, or count it among those that were dropped, which the next line says."""
        if self._waiting.qsize() >= self._max:
            self._dropped += 1
            return
        if self._dropped:
            args = (self._dropped,)
            self._waiting.put(
                logging.LogRecord(__name__, logging.WARNING, __file__, 0, "%d log lines were dropped", args, None)
            )
            self._dropped = 0
        self._waiting.put(record)

    def flush(self) -> None:
        """Wait until what was logged is written."""
        self._mark(_FLUSH_S)

    def close(self) -> None:
        """Wait until what was logged is written, and end."""
        self._mark(_CLOSE_S)
        self._waiting.put(None)
        super().close()

    def _mark(self, seconds: float) -> None:
        mark = _Mark()
        self._waiting.put(mark)
        mark.reached.wait(seconds)


class _Mark:
    """Stands in the queue behind what a caller waits for."""

    def __init__(self) -> None:
        self.reached = threading.Event()


class _Batches:
    """A stream that collects lines while more of them wait: each write lets other threads go first."""

    def __init__(self, stream: TextIO, more: Callable[[], bool]) -> None:
        self._stream, self._more = stream, more
        self._lines: list[str] = []

    def write(self, line: str) -> None:
        self._lines.append(line)

    def flush(self) -> None:
        if len(self._lines) >= _BATCH_LINES or not self._more():
            self.write_out()

    def write_out(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            self._stream.write("".join(lines))
            self._stream.flush()


class _Writer(QueueListener):
    def __init__(self, waiting: SimpleQueue[Any], handler: logging.Handler, batches: _Batches) -> None:
        super().__init__(waiting, handler)
        self._batches = batches

    def handle(self, record: logging.LogRecord | _Mark) -> None:
        if not isinstance(record, _Mark):
            super().handle(record)
            return
        with suppress(OSError, ValueError):  # the stream is gone, or closed: there is nowhere left to say so
            self._batches.write_out()
        record.reached.set()
