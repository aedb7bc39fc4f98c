"""The field's common format, to be measured against: the XOR of old and new bytes of each tensor, zstd level 1.

Twice, both with tensors side by side in threads, the largest first, and buffers that are used again; no checksums, no
container, no store:

- ``STREAMED``: as fast as NumPy and python-zstandard make it: a piece of a tensor at a time, so that the XOR stays in
  the cache on its way into the compressor and out of the decompressor. This is what limits are held against.
- ``WHOLE``: a tensor at a time, as the implementations in the field do it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import zstandard

from benchmarks.states import Cells

LEVEL = 1
STREAMED = 1 << 20
"""Bytes a piece."""
WHOLE = 1 << 62
Bytes: TypeAlias = npt.NDArray[np.uint8]


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

    def _buffer(self, nbytes: int) -> Bytes:
        needed = min(nbytes, self._piece)
        if not hasattr(self._local, "buffer") or len(self._local.buffer) < needed:
            self._local.buffer = np.empty(needed, np.uint8)
            self._local.compressor = zstandard.ZstdCompressor(level=LEVEL)
            self._local.decompressor = zstandard.ZstdDecompressor()
        buffer: Bytes = self._local.buffer
        return buffer

    def _encode(self, old: Bytes, new: Bytes) -> bytes:
        buffer = self._buffer(len(old))
        stream = self._local.compressor.compressobj(size=len(old))
        parts = []
        for start in range(0, len(old), self._piece):
            stop = min(start + self._piece, len(old))
            part = buffer[: stop - start]
            _xor(old[start:stop], new[start:stop], part)
            parts.append(stream.compress(part.data))
        return b"".join((*parts, stream.flush()))

    def _decode(self, cells: Bytes, frame: Bytes) -> bytes:
        buffer = self._buffer(len(cells))
        with self._local.decompressor.stream_reader(frame.data) as reader:
            for start in range(0, len(cells), self._piece):
                stop = min(start + self._piece, len(cells))
                part = buffer[: stop - start]
                at = 0
                while at < len(part):
                    at += reader.readinto(part[at:].data)
                _xor(cells[start:stop], part, cells[start:stop])
        return b""


def _bytes(cells: Cells) -> Bytes:
    return cells.reshape(-1).view(np.uint8)


def _xor(a: Bytes, b: Bytes, out: Bytes) -> None:
    """XOR eight bytes at a time where that works out."""
    whole = len(a) // 8 * 8
    np.bitwise_xor(a[:whole].view(np.uint64), b[:whole].view(np.uint64), out=out[:whole].view(np.uint64))
    if whole < len(a):
        np.bitwise_xor(a[whole:], b[whole:], out=out[whole:])
