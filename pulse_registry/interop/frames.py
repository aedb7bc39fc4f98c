"""One tensor's delta as a zstd frame: written and read a piece at a time, so that a piece stays in the cache.

Two encodings, both over the tensor's bytes. ``xor``: the XOR of old and new bytes, all of them. ``overwrite``: the
number of bytes that differ (u4), their positions (u4 each, rising), then their new values. Integers are little-endian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import zstandard

from pulse_registry.interop.checksum import Bytes

LEVEL = 1
"""Of zstd, as the field's writers have it."""
PIECE = 1 << 20
"""Bytes a piece."""
POSITIONS = 1 << 32
"""Bytes that the positions of ``overwrite`` reach."""

_WINDOW_LOGS = (23, 27)
"""Of zstd: what every reader is to take, and what the library takes at most."""

Note = Callable[[Bytes], object]
"""Is told of a tensor's new bytes, piece by piece, in order."""


class Encoding(StrEnum):
    """How a tensor's delta is written; the values are those of the index's ``delta_encoding``."""

    XOR = "xor"
    OVERWRITE = "overwrite"


class FrameFault(ValueError):
    """A frame does not hold a delta of the tensor; the message says why."""


class Frames:
    """Writes and reads frames with contexts and a buffer that it uses again: for one thread at a time.

    What a frame claims of its size is held against the tensor's before anything is decompressed, and no more bytes are
    taken out of it than the tensor's delta can have.
    """

    def __init__(self, piece: int = PIECE) -> None:
        self._piece = piece
        self._room = np.empty(0, np.uint8)
        self._compressor = zstandard.ZstdCompressor(level=LEVEL)
        self._decompressors: dict[int, zstandard.ZstdDecompressor] = {}

    def write(self, encoding: Encoding, old: Bytes, new: Bytes, note: Note | None = None) -> bytes:
        """Return the frame that leads from ``old`` to ``new``, which are as long as one another.

        ``overwrite`` reads both three times, so that it needs no memory for what it finds.
        """
        write = self._write_xor if encoding is Encoding.XOR else self._write_overwrite
        return write(old, new, note or _nothing)

    def read(self, encoding: Encoding, frame: memoryview, cells: Bytes, note: Note | None = None) -> None:
        """Turn old bytes into new ones, in place.

        Raises:
            FrameFault: the frame holds no delta of so many bytes; some of ``cells`` may have been changed.
        """
        read = self._read_xor if encoding is Encoding.XOR else self._read_overwrite
        try:
            claimed = zstandard.get_frame_parameters(frame).content_size
            read(frame, cells, None if claimed == zstandard.CONTENTSIZE_UNKNOWN else claimed, note or _nothing)
        except zstandard.ZstdError as error:
            raise FrameFault(f"it is no whole zstd frame: {error}") from error

    def _write_xor(self, old: Bytes, new: Bytes, note: Note) -> bytes:
        buffer, parts = self._buffer(len(old)), []
        stream = self._compressor.compressobj(size=len(old))
        for start, stop in self._pieces(len(old)):
            part = buffer[: stop - start]
            xor(old[start:stop], new[start:stop], part)
            note(new[start:stop])
            parts.append(stream.compress(part.data))
        return b"".join((*parts, stream.flush()))

    def _write_overwrite(self, old: Bytes, new: Bytes, note: Note) -> bytes:
        if len(old) > POSITIONS:
            raise FrameFault(f"its positions reach {POSITIONS:,} bytes, and the tensor has {len(old):,}")

        def found() -> Iterator[tuple[int, Bytes, npt.NDArray[np.intp]]]:
            for start, stop in self._pieces(len(old)):
                yield start, new[start:stop], np.flatnonzero(old[start:stop] != new[start:stop])

        count = 0
        for _, part, places in found():
            count += len(places)
            note(part)
        stream = self._compressor.compressobj(size=4 + 5 * count)
        parts = [stream.compress(count.to_bytes(4, "little"))]
        parts += [stream.compress((places + start).astype("<u4").data) for start, _, places in found() if len(places)]
        parts += [stream.compress(part[places].data) for _, part, places in found() if len(places)]
        return b"".join((*parts, stream.flush()))

    def _read_xor(self, frame: memoryview, cells: Bytes, claimed: int | None, note: Note) -> None:
        if claimed not in (None, len(cells)):
            raise FrameFault(f"its frame claims {claimed:,} bytes, and the tensor has {len(cells):,}")
        buffer = self._buffer(len(cells))
        with self._reader(frame, len(cells)) as reader:
            for start, stop in self._pieces(len(cells)):
                part = buffer[: stop - start]
                _fill(reader, part)
                xor(cells[start:stop], part, cells[start:stop])
                note(cells[start:stop])
            _end(reader)

    def _read_overwrite(self, frame: memoryview, cells: Bytes, claimed: int | None, note: Note) -> None:
        with self._reader(frame, 4 + 5 * len(cells)) as reader:
            head = np.empty(4, np.uint8)
            _fill(reader, head)
            count = int.from_bytes(head.tobytes(), "little")
            if count > len(cells) or claimed not in (None, 4 + 5 * count):
                raise FrameFault(
                    f"it claims {count:,} changed bytes in a frame of {claimed}; the tensor has {len(cells):,}"
                )
            positions = np.empty(count, "<u4")
            _fill(reader, positions.view(np.uint8))
            if count and (int(positions[-1]) >= len(cells) or not bool((positions[1:] > positions[:-1]).all())):
                raise FrameFault("its positions do not rise, or lie past the tensor's end")
            buffer = self._buffer(count)
            for start, stop in self._pieces(count):
                _fill(reader, buffer[: stop - start])
                cells[positions[start:stop]] = buffer[: stop - start]
            _end(reader)
        for start, stop in self._pieces(len(cells)):
            note(cells[start:stop])

    def _reader(self, frame: memoryview, most: int) -> zstandard.ZstdDecompressionReader:
        """Return a reader of a frame that gives ``most`` bytes: it takes no more memory for a window than they need."""
        log = min(max(most.bit_length(), _WINDOW_LOGS[0]), _WINDOW_LOGS[1])
        if log not in self._decompressors:
            self._decompressors[log] = zstandard.ZstdDecompressor(max_window_size=1 << log)
        return self._decompressors[log].stream_reader(frame, read_across_frames=True)

    def _buffer(self, nbytes: int) -> Bytes:
        needed = min(nbytes, self._piece)
        if len(self._room) < needed:
            self._room = np.empty(needed, np.uint8)
        return self._room

    def _pieces(self, nbytes: int) -> Iterator[tuple[int, int]]:
        return ((start, min(start + self._piece, nbytes)) for start in range(0, nbytes, self._piece))


def differ(old: Bytes, new: Bytes, piece: int = PIECE) -> bool:
    """Tell whether any byte differs; stops at the first piece that has one."""
    pieces = range(0, len(old), piece)
    return not all(np.array_equal(old[at : at + piece], new[at : at + piece]) for at in pieces)


def xor(a: Bytes, b: Bytes, out: Bytes) -> None:
    """XOR bytes, eight at a time where that works out; ``out`` may be one of the two."""
    whole = len(a) // 8 * 8
    np.bitwise_xor(a[:whole].view(np.uint64), b[:whole].view(np.uint64), out=out[:whole].view(np.uint64))
    if whole < len(a):
        np.bitwise_xor(a[whole:], b[whole:], out=out[whole:])


def _fill(reader: zstandard.ZstdDecompressionReader, into: Bytes) -> None:
    at = 0
    while at < len(into):
        read = reader.readinto(into[at:].data)
        if not read:
            raise FrameFault("its frame ends too soon")
        at += read


def _end(reader: zstandard.ZstdDecompressionReader) -> None:
    if reader.read(1):
        raise FrameFault("its frame holds more than the tensor's delta")


def _nothing(data: Bytes) -> None:
    """Take no note."""
