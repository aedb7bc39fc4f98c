"""Layout of a coded group's bytes: split into head fields and arrays, every size checked, nothing decoded."""

from __future__ import annotations

import struct

import numpy as np

from pulse_kernels.errors import CodecError
from pulse_kernels.format.gap_tables import PARAMETERS
from pulse_kernels.format.rans import CHUNK
from pulse_kernels.protocol import Coded

MOST_CLASSES = 32
LAST_CLASS = 255
CONTEXTS = 3
"""Pairs of tables that ``gap`` chooses from."""
_HEAD = struct.Struct("<BBH")
_CLASS = np.dtype([("count", "<u4"), ("parameter", "u1")])


def join(coded: Coded) -> bytes:
    """Return the bytes of a coded group."""
    classes = b""
    if coded.parameters is not None:
        entries = np.empty(len(coded.counts), dtype=_CLASS)
        entries["count"], entries["parameter"] = coded.counts, coded.parameters
        classes = entries.tobytes()
    head = _HEAD.pack(len(classes) // _CLASS.itemsize, coded.first, len(coded.tables))
    padding = bytes((len(classes) + len(coded.tables)) % 2)
    arrays = [array.tobytes() for array in (coded.tables, coded.sizes, coded.words)]
    return b"".join((head, classes, arrays[0], padding, *arrays[1:]))


def split(is_class: bool, changed: int, data: bytes | memoryview) -> Coded:
    """Take the bytes of a group with ``changed`` changed cells apart, without a copy.

    Raises:
        CodecError: sizes or counts don't add up, or a field is out of range.
    """
    size = len(data)
    if size < _HEAD.size:
        raise CodecError("the group is shorter than its head")
    classes, first, tables = _HEAD.unpack_from(data)
    at = _HEAD.size + classes * _CLASS.itemsize
    end = at + tables
    chunks = -(-changed // CHUNK)
    start = end + end % 2 + 2 * chunks
    possible = 0 < classes <= MOST_CLASSES and first + classes - 1 <= LAST_CLASS if is_class else not (classes or first)
    if not possible:
        raise CodecError(f"{classes} classes from {first} on are not possible here")
    if start > size or size % 2:
        raise CodecError(f"{size} bytes do not fit the group's head")
    if end % 2 and data[end]:
        raise CodecError("the byte after the tables is not zero")
    sizes = np.frombuffer(data, np.dtype("<u2"), chunks, start - 2 * chunks)
    words = np.frombuffer(data, np.dtype("<u2"), (size - start) // 2, start) if size > start else sizes[:0]
    listed = sizes.tolist()  # few: NumPy would take longer to begin
    if min(listed) < 2 or sum(listed) != len(words):
        raise CodecError("the sizes of the chunks do not add up to the group")
    stored = np.frombuffer(data, np.uint8, tables, at) if tables else np.empty(0, np.uint8)
    if not is_class:
        return Coded(0, np.array([changed], np.uint32), None, stored, sizes, words)
    entries = np.frombuffer(data, _CLASS, classes, _HEAD.size)
    counts, parameters = np.ascontiguousarray(entries["count"], np.uint32), np.ascontiguousarray(entries["parameter"])
    if int(counts.sum(dtype=np.uint64)) != changed:
        raise CodecError("the classes do not add up to the group's changed cells")
    if int(parameters.max()) >= PARAMETERS or parameters[counts == 0].any():
        raise CodecError("a class has a gap parameter that is not possible")
    return Coded(first, counts, parameters, stored, sizes, words)
