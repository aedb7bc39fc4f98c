"""Blocks: some rows of a table as canonical JSON, one a line, in one zstd frame. How rows are kept, and stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import zstandard

from pulse_registry.errors import CorruptObject

ROWS: Final = 64
"""Of a block: more are smaller together, and cost more where one of them is read."""
FULL_BYTES: Final = 1 << 20
"""Lines that make a block full, however few they are."""
MOST_BYTES: Final = FULL_BYTES + (8 << 20)
"""Of a block's lines: the last of them may be as long as a record."""
_LEVEL: Final = 1
"""Of hashes and ids, which are most of a row, higher ones make no less."""


class Block(NamedTuple):
    """Rows of a table: how many, the frame, and what it came from, for messages."""

    rows: int
    frame: bytes
    source: str = "the log's state"

    @classmethod
    def of(cls, lines: Sequence[bytes]) -> Block:
        """Make a block of rows' canonical JSON."""
        frame = zstandard.ZstdCompressor(level=_LEVEL).compress(b"".join(line + b"\n" for line in lines))
        return cls(len(lines), bytes(memoryview(frame)))  # a copy: the compressor's has room for what can't be packed

    @property
    def nbytes(self) -> int:
        """Bytes of the lines, as the frame says.

        Raises:
            CorruptObject: it does not say, or more than a block has; no memory was taken for it.
        """
        try:
            nbytes = zstandard.frame_content_size(self.frame)
        except zstandard.ZstdError as error:
            raise CorruptObject(f"{self.source}: a block of rows is damaged: {error}") from error
        if not 0 <= nbytes <= MOST_BYTES:
            raise CorruptObject(f"{self.source}: a block of rows says that it has {nbytes} bytes: 0 to {MOST_BYTES:,}")
        return nbytes

    def lines(self) -> list[bytes]:
        """Return the rows' JSON.

        Raises:
            CorruptObject: the frame is damaged, or has another number of rows.
        """
        nbytes = self.nbytes
        try:
            content = zstandard.ZstdDecompressor().decompress(
                self.frame, max_output_size=nbytes, allow_extra_data=False
            )
        except zstandard.ZstdError as error:
            raise CorruptObject(f"{self.source}: a block of rows is damaged: {error}") from error
        lines = content.split(b"\n")
        if lines.pop() or len(lines) != self.rows:
            raise CorruptObject(f"{self.source}: a block of {self.rows} rows has others")
        return lines


def packed(lines: Iterable[bytes]) -> Iterator[Block]:
    """Yield rows' canonical JSON in full blocks, and the rest of it in one more."""
    found: list[bytes] = []
    nbytes = 0
    for line in lines:
        found.append(line)
        nbytes += len(line)
        if len(found) == ROWS or nbytes >= FULL_BYTES:
            yield Block.of(found)
            found, nbytes = [], 0
    if found:
        yield Block.of(found)
