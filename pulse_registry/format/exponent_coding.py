"""The coding of keyframes: each piece of a plain shard is coded alone, its BF16 cells by their exponents.

A decoded shard is, byte for byte, the plain one: only where pieces are fetched is there anything to know of the coding.
And since a piece stays what is fetched, checked and kept, threads and resumed pulls work on it as they did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from blake3 import blake3

from pulse_kernels.format.exponents import (
    coded_size,
    decode_cells,
    encode_cells,
    max_coded_size,
)
from pulse_kernels.protocol import ExponentLoops, Heads
from pulse_registry.errors import Conflict
from pulse_registry.format.pieces import CODING_FORMAT
from pulse_registry.format.safetensors import header_bytes, tensor_entry
from pulse_registry.store import Stream
from pulse_registry.weights.cell_space import Geometry

KeyframeCoding = Literal["raw", "exponents"]
_CODED_DTYPE = "BF16"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a plain shard: the file's bytes ``start`` to ``stop``, BF16 cells from ``first`` to ``last``."""

    start: int
    first: int
    last: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Size of the plain piece."""
        return self.stop - self.start

    @property
    def most(self) -> int:
        """Bytes that the coded piece never exceeds."""
        return self.nbytes - (self.last - self.first) + max_coded_size((self.last - self.first) // 2)

    def fit(self, loops: ExponentLoops, plain: memoryview) -> Heads:
        """Return the heads with which the piece is coded."""
        return loops.fit(self._cells(plain))

    def size(self, heads: Heads) -> int:
        """Return the bytes of the coded piece."""
        return self.nbytes - (self.last - self.first) + coded_size(heads, (self.last - self.first) // 2)

    def encode(self, loops: ExponentLoops, plain: memoryview, heads: Heads) -> list[memoryview]:
        """Return the coded piece, in new buffers end to end; raises ValueError where ``heads`` are of other cells."""
        before, after = bytes(plain[: self.first - self.start]), bytes(plain[self.last - self.start :])
        return [memoryview(part) for part in (before, encode_cells(loops, self._cells(plain), heads), after)]

    def decode(self, loops: ExponentLoops, coded: memoryview, plain: memoryview) -> None:
        """Write the plain piece into a buffer of its size; raises CodecError."""
        before, after = self.first - self.start, self.stop - self.last
        plain[:before] = coded[:before]
        plain[len(plain) - after :] = coded[len(coded) - after :]
        decode_cells(loops, coded[before : len(coded) - after], self._cells(plain))

    def _cells(self, plain: memoryview) -> np.ndarray[Any, Any]:
        return np.frombuffer(plain[self.first - self.start : self.last - self.start], "<u2")


def parts_of(geometry: Geometry, first: int, last: int, header: int, piece_bytes: int) -> list[Part]:
    """Cut a plain shard into pieces: the layout's tensors ``first`` to ``last`` after a header of so many bytes.

    Tensors of one dtype lie side by side, so that BF16 cells are one stretch of the file; it begins at an even byte.
    """
    at = begin = end = header
    for number in range(first, last):
        at += geometry.tensor_bytes(number)
        if geometry.layout.tensors[number].dtype == _CODED_DTYPE:
            end = at
        elif end == begin:
            begin = end = at
    cuts = [*range(0, at, piece_bytes), at]
    return [
        Part(start, min(max(begin, start), stop), min(max(end, start), stop), stop) for start, stop in pairwise(cuts)
    ]


def coded_header(nbytes: int) -> bytes:
    """Return what a coded shard begins with: pieces of ``nbytes`` bytes in all follow."""
    return header_bytes({"__metadata__": {"coding": CODING_FORMAT}, "pieces": tensor_entry("U8", [nbytes], 0, nbytes)})


class CodedStream(Stream):
    """A coded shard's bytes, hashed as they go; may be iterated again (a put that is retried).

    Its size must be known before it is written, so the cells are read twice: once to fit the coding to them, which is
    the cheaper part, and once to code them.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[Part],
        plain: Callable[[], Iterator[memoryview]],
        loops: ExponentLoops,
        map_: Callable[..., Iterator[Any]],
    ) -> None:
        """Fit the coding to a shard.

        Args:
            name: of the file, for errors.
            parts: its pieces.
            plain: returns the plain shard's bytes, in chunks of any size, each time the same.
            loops: compute.
            map_: ``map``, or an executor's.
        """
        self.blake3 = ""
        self.pieces: tuple[str, ...] = ()
        self._name, self._parts, self._plain, self._loops, self._map = name, parts, plain, loops, map_
        self._heads: list[Heads] = []
        for window, pieces in self._windows():
            self._heads += map_(lambda part, piece: part.fit(loops, piece), window, pieces)
        self.sizes = tuple(part.size(heads) for part, heads in zip(parts, self._heads, strict=True))
        self._header = coded_header(sum(self.sizes))
        self.nbytes = len(self._header) + sum(self.sizes)

    def __iter__(self) -> Iterator[memoryview]:
        whole, hashes, done = blake3(self._header), [], 0
        yield memoryview(self._header)
        for window, pieces in self._windows():
            heads = self._heads[done : done + len(window)]
            numbers = range(done, done + len(window))
            for digest, buffers in self._map(self._coded, numbers, window, pieces, heads):
                hashes.append(digest)
                for buffer in buffers:
                    whole.update(buffer)
                    yield buffer
            done += len(window)
        self.blake3, self.pieces = whole.hexdigest(), tuple(hashes)

    def _coded(self, number: int, part: Part, piece: memoryview, heads: Heads) -> tuple[str, list[memoryview]]:
        try:
            buffers = part.encode(self._loops, piece, heads)
        except ValueError as error:
            raise Conflict(f"{self._name}: {error}; the keyframe was not written") from error
        hasher = blake3(self._header if number == 0 else b"")
        for buffer in buffers:
            hasher.update(buffer)
        return hasher.hexdigest(), buffers

    def _windows(self) -> Iterator[tuple[Sequence[Part], list[memoryview]]]:
        """Yield the parts that each chunk completes, and their plain bytes: in the chunk, or copied if it cuts them."""
        straddling = memoryview(bytearray(max(part.nbytes for part in self._parts)))
        done = filled = 0
        for chunk in self._plain():
            at, held = 0, list[memoryview]()
            while done + len(held) < len(self._parts):
                size = self._parts[done + len(held)].nbytes
                rest = chunk[at : at + size - filled]
                if filled or len(rest) < size:
                    if filled + len(rest) < size:
                        break
                    straddling[filled:size] = rest
                    held.append(straddling[:size])
                    filled = 0
                else:
                    held.append(rest)
                at += len(rest)
            if held:
                yield self._parts[done : done + len(held)], held
                done += len(held)
            rest = chunk[at:]
            straddling[filled : filled + len(rest)] = rest
            filled += len(rest)
