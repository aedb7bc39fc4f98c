"""Header of a safetensors file: eight bytes of length, JSON, spaces up to a multiple of eight.

The library writes whole files from memory only, where patches need a fixed order of keys and keyframes are streamed;
and it reads whole files only, where of an object in a store the head is enough. What is taken for a head here is what
the library takes for one, no less and no more.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pulse_registry.process.open_files import ReadRange
from pulse_registry.quoting import quoted

HEADER_LIMIT = 100_000_000
"""Bytes of JSON: the library's own bound. What is longer is refused before it is read."""
BITS: dict[str, int] = {
    "F64": 64,
    "C64": 64,
    "I64": 64,
    "U64": 64,
    "F32": 32,
    "I32": 32,
    "U32": 32,
    "BF16": 16,
    "F16": 16,
    "I16": 16,
    "U16": 16,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "I8": 8,
    "U8": 8,
    "BOOL": 8,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "F4": 4,
}
"""Of an element of each dtype that some release of the library knows; more than can be stored here."""
_LENGTH = struct.Struct("<Q")
_FIELDS = ("dtype", "shape", "data_offsets")
_NO_MORE = 1 << 64
"""The library counts elements, bits and bytes in 64 bits without a sign."""
_DEPTH = 127
"""How deep JSON may be nested in the library's parser."""


class HeaderFault(ValueError):
    """The bytes are no safetensors file; the message says why."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Entry of one tensor in a header: bytes ``start`` to ``stop``, counted from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Header:
    """A file's head, of ``nbytes`` bytes: its tensors lie end to end behind it and are all of the rest of the file."""

    tensors: dict[str, TensorPlace]
    metadata: dict[str, str]
    nbytes: int


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
        raise ValueError(f"of F4 two elements are a cell, and the last dimension of {quoted(list(shape))} is not even")
    return (*shape[:-1], shape[-1] // 2)


def header_bytes(document: dict[str, Any]) -> bytes:
    """Return the length and the JSON header; the same document, in the same order, gives the same bytes."""
    header = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    return _LENGTH.pack(len(header)) + header


def head_of(read: ReadRange, size: int) -> bytes:
    """Read a file's length field and its header, and nothing else: never more than ``HEADER_LIMIT`` bytes of JSON.

    Of what claims more than that, or than the file has, the length field comes back, for ``parse_head`` to refuse.
    """
    first = read(0, min(_LENGTH.size, size))
    stop = _LENGTH.size + int.from_bytes(first, "little")
    return first if stop > min(size, _LENGTH.size + HEADER_LIMIT) else read(0, stop)


def parse_head(head: bytes, size: int) -> Header:
    """Return what a file's head says, as ``head_of`` gives it, if the safetensors library takes the file.

    Memory is within 20 times the header's bytes: 2 GB at its limit. As in the library, of two tensors of one name the
    last one counts, and fields that are not known say nothing.

    Args:
        head: the file's first bytes, up to the end of its header.
        size: of the whole file, bytes.

    Raises:
        HeaderFault: it is no safetensors file: the JSON is none, or is not what it must be, or what it says of the
            tensors does not add up to the file: holes, overlaps, bytes that no tensor has, sizes beyond 64 bits.
    """
    if len(head) < _LENGTH.size:
        raise HeaderFault("shorter than its length field")
    (length,) = _LENGTH.unpack_from(head)
    if length > HEADER_LIMIT:
        raise HeaderFault(f"the header claims {length} bytes, and may have {HEADER_LIMIT}")
    nbytes = _LENGTH.size + length
    if nbytes > min(size, len(head)):
        raise HeaderFault(f"the header claims {length} bytes, {min(size, len(head)) - _LENGTH.size} follow")
    tensors: dict[str, TensorPlace] = {}
    metadata: dict[str, str] | None = None
    for name, value in _object(_json(head[_LENGTH.size : nbytes]), "the header"):
        if name != "__metadata__":
            tensors[name] = _place(name, value)
        elif metadata is not None:
            raise HeaderFault("it has metadata twice")
        else:
            metadata = _metadata(value)
    in_order = dict(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)))
    _check_places(in_order, size - nbytes)
    return Header(in_order, metadata or {}, nbytes)


def _json(text: bytes) -> Any:
    """Return a JSON value; its objects are tuples of pairs, so that what is there twice is seen twice."""
    try:
        # Not of bytes: that would take UTF-16, too.
        document = json.loads(
            text.decode(), object_pairs_hook=tuple, parse_int=_integer, parse_constant=_refuse_constant
        )
        if b"\\ud" in text or b"\\uD" in text:
            json.dumps(document, ensure_ascii=False).encode()  # half a letter is a ValueError
    except HeaderFault:
        raise
    except ValueError as error:
        raise HeaderFault(f"the header is no JSON: {error}") from error
    except RecursionError as error:
        raise HeaderFault("the header is nested too deep") from error
    return document


def _integer(text: str) -> int | float:
    """Return a number as the library reads it: -0, and what is beyond 64 bits, is a fraction to it."""
    return float(text) if len(text) > 20 or text == "-0" else int(text)


def _refuse_constant(name: str) -> None:
    raise HeaderFault(f"the header is no JSON: {name}")


def _object(value: Any, what: str) -> tuple[tuple[str, Any], ...]:
    if not isinstance(value, tuple):
        raise HeaderFault(f"{what} is not a JSON object")
    return value


def _metadata(value: Any) -> dict[str, str]:
    metadata = dict(_object(() if value is None else value, "the metadata"))
    for name, text in metadata.items():
        if not isinstance(text, str):
            raise HeaderFault(f"metadata are strings, and {quoted(name)} is none")
    return metadata


def _place(name: str, value: Any) -> TensorPlace:
    """Return what an entry says; the library takes its three values in a list, too, and a dtype as ``{"U8": null}``."""
    if isinstance(value, list) and len(value) == len(_FIELDS):
        dtype, shape, offsets = value
    else:
        dtype, shape, offsets = _fields(name, value)
    if isinstance(dtype, tuple) and len(dtype) == 1 and dtype[0][1] is None:
        dtype = dtype[0][0]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise HeaderFault(f"tensor {quoted(name)} is of {quoted(dtype)}, which is no dtype")
    if not _are_sizes(shape):
        raise HeaderFault(f"the shape of tensor {quoted(name)} is no list of sizes: {quoted(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise HeaderFault(f"the offsets of tensor {quoted(name)} are not two sizes: {quoted(offsets)}")
    return TensorPlace(dtype, tuple(shape), *offsets)


def _fields(name: str, entry: Any) -> list[Any]:
    if not isinstance(entry, tuple):
        raise HeaderFault(f"what it says of tensor {quoted(name)} is no JSON object")
    fields: dict[str, Any] = {}
    for field, said in entry:
        if field not in _FIELDS:
            _check_unused(said, 3)
        elif field in fields:
            raise HeaderFault(f"tensor {quoted(name)} has {field} twice")
        else:
            fields[field] = said
    missing = [field for field in _FIELDS if field not in fields]
    if missing:
        raise HeaderFault(f"tensor {quoted(name)} has no {missing[0]}")
    return [fields[field] for field in _FIELDS]


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < _NO_MORE for size in value)


def _check_unused(value: Any, depth: int) -> None:
    """Refuse what the library's parser refuses wherever it meets it."""
    if isinstance(value, list | tuple):
        if depth > _DEPTH:
            raise HeaderFault("the header is nested too deep")
        for inner in value:
            # The pairs of an object are no level of their own.
            _check_unused(inner[1] if isinstance(value, tuple) else inner, depth + 1)
    elif isinstance(value, float) and math.isinf(value):
        raise HeaderFault("a number is out of range")


def _check_places(tensors: dict[str, TensorPlace], room: int) -> None:
    """Refuse what does not lie end to end in so many bytes, or is not as long as its shape says."""
    at = 0
    for name, place in tensors.items():
        if place.start != at or place.stop < at:
            raise HeaderFault(f"{_where(name, place)} do not begin where the tensor before it ends, at {at}")
        if place.stop > room:
            raise HeaderFault(f"{_where(name, place)} end behind the file's {room}")
        if 8 * (place.stop - at) != _bits(place):
            raise HeaderFault(f"{_where(name, place)} are not {quoted(list(place.shape))} of {place.dtype}")
        at = place.stop
    if at != room:
        raise HeaderFault(f"its tensors have {at} bytes, and {room} follow the header")


def _where(name: str, place: TensorPlace) -> str:
    return f"tensor {quoted(name)}: bytes {place.start} to {place.stop}"


def _bits(place: TensorPlace) -> int | None:
    """Return how many bits a tensor has; None where the library's count of them overflows, be it nothing in the end."""
    count = 1
    for size in (*place.shape, BITS[place.dtype]):
        count *= size
        if count >= _NO_MORE:
            return None
    return count
