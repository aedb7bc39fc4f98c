"""The head of a safetensors file: eight bytes of length, JSON, spaces up to a multiple of eight.

The library writes whole files from memory only; patches need a fixed order of keys, and keyframes are streamed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any


def tensor_entry(dtype: str, shape: Sequence[int], start: int, stop: int) -> dict[str, Any]:
    """Return a tensor's entry; offsets count from the end of the header.

    ``shape`` counts cells, and the entry's counts elements: of F4, twice as many along the last dimension.
    """
    elements = [*shape[:-1], 2 * shape[-1]] if dtype == "F4" else list(shape)
    return {"dtype": dtype, "shape": elements, "data_offsets": [start, stop]}


def cell_shape(dtype: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return how many cells a tensor has along each dimension, by an entry's shape.

    Raises:
        ValueError: the elements of F4 do not fill cells.
    """
    if dtype != "F4":
        return tuple(shape)
    if not shape or shape[-1] % 2:
        raise ValueError(f"of F4 two elements are a cell, and the last dimension of {list(shape)} is not even")
    return (*shape[:-1], shape[-1] // 2)


def header_bytes(document: dict[str, Any]) -> bytes:
    """Return the length and the JSON header; the same document, in the same order, gives the same bytes."""
    header = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header


def split_header(data: bytes) -> tuple[dict[str, Any], int]:
    """Return (the JSON document, the offset of the data) of a file's first bytes.

    Raises:
        ValueError: there is no whole header.
    """
    if len(data) < 8:
        raise ValueError("shorter than its length field")
    (length,) = struct.unpack_from("<Q", data)
    if length > len(data) - 8:
        raise ValueError(f"the header claims {length} bytes, {len(data) - 8} follow")
    try:
        document = json.loads(data[8 : 8 + length])
    except RecursionError as error:
        raise ValueError("the header is nested too deep") from error
    if not isinstance(document, dict):
        raise ValueError("the header is not a JSON object")
    return document, 8 + length
