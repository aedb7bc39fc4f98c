"""Segment: rows of a run's state as one immutable safetensors file, `pulse-segment/1`. Bytes to tables and back.

Of each table there are the ids and the columns of its rows as int64, and the rows' JSON in zstd frames, one after the
other. Nothing is unpacked here; every length is checked against the bytes that are there before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pulse_registry.errors import CorruptObject, UnsupportedFormat
from pulse_registry.format.safetensors import Header, HeaderFault, header_bytes, parse_head, tensor_entry

Numbers = npt.NDArray[np.int64]

FORMAT: Final = "pulse-segment/1"
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "versions": ("version", "seq", "step", "layout"),
        "patches": ("base", "target", "nbytes", "objects", "coder", "changed", "key"),
        "keyframes": ("version", "nbytes", "objects"),
    }
)
"""The tables, in their order, and the columns of each."""
_LITTLE: Final = np.dtype("<i8")
_PARTS: Final = ("ids", "numbers", "rows", "ends")


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTable:
    """Rows of one table: an id each, rising; their columns, of shape (columns, rows); rows and frame of each block."""

    ids: Numbers
    numbers: Numbers
    blocks: tuple[tuple[int, bytes], ...]

    @property
    def nbytes(self) -> int:
        """Bytes in a segment, but for its header."""
        return sum(len(frame) + 16 for _, frame in self.blocks) + self.ids.nbytes + self.numbers.nbytes


def segment_bytes(tables: Mapping[str, SegmentTable]) -> bytes:
    """Return the file with these tables, one of each name; the same tables give the same bytes."""
    document: dict[str, Any] = {"__metadata__": {"format": FORMAT}}
    parts: list[bytes] = []
    at = 0

    def add(name: str, dtype: str, shape: tuple[int, ...], data: bytes) -> None:
        nonlocal at
        document[name] = tensor_entry(dtype, shape, at, at + len(data))
        parts.append(data)
        at += len(data)

    for name in COLUMNS:
        table = tables[name]
        rows = np.array([rows for rows, _ in table.blocks], _LITTLE)
        ends = np.cumsum([len(frame) for _, frame in table.blocks], dtype=_LITTLE)
        for part, array in zip(_PARTS, (table.ids, table.numbers, rows, ends), strict=True):
            add(f"{name}.{part}", "I64", array.shape, array.astype(_LITTLE).tobytes())
    for name in COLUMNS:
        frames = b"".join(frame for _, frame in tables[name].blocks)
        add(f"{name}.blocks", "U8", (len(frames),), frames)
    return b"".join((header_bytes(document), *parts))


def parse_segment(key: str, data: bytes) -> dict[str, SegmentTable]:
    """Return the tables of a segment's bytes, which may be anybody's.

    Args:
        key: of the segment, for messages.
        data: the whole file.

    Raises:
        CorruptObject: it is no segment, or contradicts itself.
        UnsupportedFormat: another release wrote it.
    """
    try:
        header = parse_head(data, len(data))
    except HeaderFault as error:
        raise CorruptObject(f"{key}: it is no segment: {error}") from error
    found = header.metadata.get("format")
    if found != FORMAT:
        kind = UnsupportedFormat if (found or "").startswith("pulse-segment/") else CorruptObject
        raise kind(f"{key}: it is of format {found!r:.100}, and this release reads {FORMAT}; upgrade pulse-registry")
    names = [f"{name}.{part}" for part in (*_PARTS, "blocks") for name in COLUMNS]
    if sorted(header.tensors) != sorted(names):
        raise CorruptObject(f"{key}: it has other tensors than a segment")
    return {name: _table(key, name, header, memoryview(data)[header.nbytes :]) for name in COLUMNS}


def _table(key: str, name: str, header: Header, content: memoryview) -> SegmentTable:
    ids, numbers, rows, ends = (_integers(key, f"{name}.{part}", header, content) for part in _PARTS)
    shapes = [header.tensors[f"{name}.{part}"].shape for part in _PARTS]
    place = header.tensors[f"{name}.blocks"]
    frames = content[place.start : place.stop]
    if shapes[:2] != [(len(ids),), (len(COLUMNS[name]), len(ids))]:
        raise CorruptObject(f"{key}: its {name} have columns of other lengths than ids")
    if len(ids) and (ids[0] < 0 or not (np.diff(ids) > 0).all()):
        raise CorruptObject(f"{key}: the ids of its {name} do not rise")
    if shapes[2:] != [(len(rows),)] * 2 or (rows < 1).any() or (rows > len(ids)).any():
        raise CorruptObject(f"{key}: the blocks of its {name} have numbers of rows that can't be")
    starts = np.concatenate((np.zeros(1, np.int64), ends))
    if place.dtype != "U8" or starts[-1] != len(frames) or (starts < 0).any() or not (starts[1:] > starts[:-1]).all():
        raise CorruptObject(f"{key}: the blocks of its {name} do not lie end to end")
    if sum(rows.tolist()) != len(ids):
        raise CorruptObject(f"{key}: the blocks of its {name} have more or fewer rows than its columns")
    places = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=False)
    numbers = numbers.reshape(shapes[1])
    return SegmentTable(ids, numbers, tuple((count, bytes(frames[start:stop])) for count, start, stop in places))


def _integers(key: str, name: str, header: Header, content: memoryview) -> Numbers:
    """Return the numbers of a tensor, one after the other: its shape may be one that NumPy can't have."""
    place = header.tensors[name]
    if place.dtype != "I64":
        raise CorruptObject(f"{key}: {name} are {place.dtype}, and must be I64")
    array = np.frombuffer(content[place.start : place.stop], _LITTLE)
    return array.astype(np.int64)  # a copy, or who keeps it would keep the whole file
