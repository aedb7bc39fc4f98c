"""Layout validation. A long layout is read in a process of its own, since validation lets no other thread run.

A layout of 10^12 cells (6.6 MB) takes most of a second to read, and one that is none may take far longer, and a
thousand times its length in memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from pulse_kernels import CELL_TYPES
from pulse_registry.errors import StoreUnavailable
from pulse_schemas import Fault, SchemaError
from pulse_server.runs import layout_process

SHORT: Final = 8 << 10
"""Bytes of a layout that is read here: some 80 tensors. A process takes a fifth of a second to begin."""
_PROCESS_S: Final = 60.0


class Layouts:
    """Reads layouts, long ones one after the other."""

    def __init__(self) -> None:
        """Begin; processes are started when they are needed."""
        self.pool = ThreadPoolExecutor(1, "layout")
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def nbytes_of(self, data: bytes) -> int:
        """Return what all cells of a layout take, in bytes. Call it in a thread of ``pool``.

        Raises:
            SchemaError: it is no layout, or takes more to read than any.
            StoreUnavailable: the service is being stopped.
        """
        found = layout_process.examine(data) if len(data) <= SHORT else self._examined(data)
        if "error" in found:
            raise SchemaError(str(found["error"]), Fault.UNSUPPORTED if found.get("unsupported") else Fault.CORRUPT)
        cells = found["cells"]
        if not isinstance(cells, dict):
            raise TypeError(f"cells are a {type(cells).__name__}")
        return sum(number * CELL_TYPES[dtype].width for dtype, number in cells.items())

    def close(self) -> None:
        """End: a process that is under way is stopped."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
        self.pool.shutdown(cancel_futures=True)

    def _examined(self, data: bytes) -> dict[str, object]:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the service is being stopped: send it to another one")
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(Path(layout_process.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        with self._process as process:
            try:
                answer, _ = process.communicate(data, _PROCESS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                answer = b""
        if self._closed:
            raise StoreUnavailable("the service is being stopped: send it to another one")
        if process.returncode != 0:
            return {"error": "it takes more time or memory to read than any layout"}
        found: dict[str, object] = json.loads(answer)
        return found
