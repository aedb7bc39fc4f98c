"""The field's common format, to be measured against: the XOR of old and new bytes of each tensor, zstd level 1.

Twice, both with tensors side by side in threads, the largest first, and buffers that are used again; no checksums, no
container, no store:

- ``STREAMED``: as fast as NumPy and python-zstandard make it: a piece of a tensor at a time, so that the XOR stays in
  the cache on its way into the compressor and out of the decompressor. This is what limits are held against, and what
  ``pulse export`` and ``pulse import`` work with (``pulse_registry.interop.frames``).
- ``WHOLE``: a tensor at a time, as the implementations in the field do it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from benchmarks.states import Cells
from pulse_registry.interop.checksum import Bytes
from pulse_registry.interop.frames import PIECE, Encoding, Frames

STREAMED = PIECE
"""Bytes a piece."""
WHOLE = 1 << 62


class XorZstd:
    """Encodes and decodes with ``threads`` threads, each with contexts and buffers of its own that it uses again."""

    name = "XOR + zstd-1"

    def __init__(self, threads: int, piece: int = STREAMED) -> None:
        self._piece = piece
        self._pool = ThreadPoolExecutor(threads)
        self._local = threading.local()

    def encode(self, old: Sequence[Cells], new: Sequence[Cells]) -> list[bytes]:
        """Return one zstd frame a tensor."""
        return self._each(self._encode, [(_bytes(a), _bytes(b)) for a, b in zip(old, new, strict=True)])

    def decode(self, frames: Sequence[bytes], cells: Sequence[Cells]) -> None:
        """Turn old cells into new ones, or new into old, in place."""
        self._each(self._decode, [(_bytes(c), np.frombuffer(f, np.uint8)) for c, f in zip(cells, frames, strict=True)])

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()

    def _each(self, work: Callable[[Bytes, Bytes], bytes], pairs: list[tuple[Bytes, Bytes]]) -> list[bytes]:
        order = sorted(range(len(pairs)), key=lambda number: -len(pairs[number][0]))
        futures: dict[int, Future[bytes]] = {number: self._pool.submit(work, *pairs[number]) for number in order}
        return [futures[number].result() for number in range(len(pairs))]

    def _encode(self, old: Bytes, new: Bytes) -> bytes:
        return self._frames().write(Encoding.XOR, old, new)

    def _decode(self, cells: Bytes, frame: Bytes) -> bytes:
        self._frames().read(Encoding.XOR, frame.data, cells)
        return b""

    def _frames(self) -> Frames:
        if not hasattr(self._local, "frames"):
            self._local.frames = Frames(self._piece)
        frames: Frames = self._local.frames
        return frames


def _bytes(cells: Cells) -> Bytes:
    return cells.reshape(-1).view(np.uint8)
