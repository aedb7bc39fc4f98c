"""The target of safetensors files: what is taken here is what the safetensors library takes, and says the same."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable

from safetensors import SafetensorError, deserialize

from pulse_registry.format.safetensors import BITS, HeaderFault, head_of, parse_head
from tests.security.fuzz.mutation import HUGE, INTERESTING, mutate_bytes, mutate_document
from tests.security.fuzz.target import Target, expect

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Dtype, shape and bytes by name."""

WORDS = tuple(
    word.encode()
    for word in (
        *('{"__metadata__":{"format":"pt"},', '"dtype":"U8"', '"shape":[', '"data_offsets":[', '{"BF16":null}'),
        *("NaN", "-0", "1e0", "4.0", '"4"', "true", "null", "[[[[", "\\ud800", "\\ud83d\\ude00", "\ufeff", " " * 8),
        *("18446744073709551615", "18446744073709551616", "9223372036854775808", "1e400"),
    )
)


def file_of(header: bytes, data: bytes = b"") -> bytes:
    """Return a file with this header; nothing says that it is one."""
    return struct.pack("<Q", len(header)) + header + data


def by_library(file: bytes) -> Tensors | None:
    """Return what the library finds in a file; None where it refuses it."""
    try:
        tensors = deserialize(file)
    except SafetensorError:
        return None
    return {name: (about["dtype"], tuple(about["shape"]), bytes(about["data"])) for name, about in tensors}


def by_us(file: bytes) -> Tensors | None:
    """Return what our parser finds in a file; None where it refuses it."""
    try:
        header = parse_head(head_of(lambda start, stop: file[start:stop], len(file)), len(file))
    except HeaderFault:
        return None
    at = header.nbytes
    return {
        name: (place.dtype, place.shape, file[at + place.start : at + place.stop])
        for name, place in header.tensors.items()
    }


UNKNOWN = frozenset(
    dtype
    for dtype in BITS
    if not by_library(file_of(json.dumps({"w": {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]}}).encode()))
)
"""Dtypes of newer libraries than the one that is installed here."""


def compare(file: bytes) -> bool:
    """Return whether both take the file; raise Defect where one does, or where they differ in what they find."""
    ours, theirs = by_us(file), by_library(file)
    if theirs is None and any(dtype.encode() in file for dtype in UNKNOWN):
        return ours is not None  # as a newer library would, perhaps
    expect((ours is None) == (theirs is None), "we take what the library takes, and no more")
    expect(ours == theirs, "we find in it what the library finds")
    return ours is not None


def head_target() -> Target:
    """Return the target of a file's head; behind it, there may be what it says, or not."""
    return Target("safetensors", compare, tuple(map(_file, _DOCUMENTS)), mutate_file, WORDS, tries=1000)


def _entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


_DOCUMENTS: tuple[dict[str, object], ...] = (
    {},
    {"__metadata__": {"format": "pt", "": ""}},
    {"__metadata__": None, "w": _entry("BF16", [2, 3], 0, 12)},
    {"b": _entry("F32", [1], 12, 16), "": _entry("U8", [], 16, 17), "w": _entry("BF16", [2, 3], 0, 12)},
    {"none": _entry("F64", [0, 2**40], 3, 3), "six": _entry("F6_E2M3", [4], 0, 3), "four": _entry("F4", [1, 6], 3, 6)},
    {"w": ["U8", [4], [0, 4]], "v": {"dtype": {"I8": None}, "shape": [1, 1], "data_offsets": [4, 5], "more": [{}]}},
)


def _file(document: dict[str, object]) -> bytes:
    places = [about for name, about in document.items() if name != "__metadata__"]
    ends = [about[2] if isinstance(about, list) else about["data_offsets"] for about in places]  # type: ignore[index]
    size = max((stop for _, stop in ends), default=0)
    return file_of(json.dumps(document, separators=(",", ":")).encode(), bytes(range(size)))


def mutate_file(data: bytes, rng: random.Random) -> bytes:
    """Change the header as JSON, or in its text, and often what follows it; mostly, the length fits again."""
    stop = 8 + int.from_bytes(data[:8], "little")
    if rng.randrange(8) == 0 or not 8 <= stop <= len(data):
        return mutate_bytes(data, rng)
    text, rest = data[8:stop], data[stop:]
    numbers = [str(number) for number in (*INTERESTING, *HUGE, -1, -0.0, 4.0, "-0", "1e0", "1e400", '"4"', "null")]

    def number() -> bytes:
        """Put another number where a digit is."""
        places = [at for at, byte in enumerate(text) if 0x30 <= byte <= 0x39]
        at = rng.choice(places or [0])
        return text[:at] + rng.choice(numbers).encode() + text[at + 1 :]

    def dtype() -> bytes:
        return text.replace(rng.choice(sorted(BITS)).encode(), rng.choice(sorted(BITS)).encode(), 1)

    def word() -> bytes:
        at = rng.randrange(len(text) + 1)
        return text[:at] + rng.choice(WORDS) + text[at + rng.choice((0, 0, 1, 4)) :]

    changes: tuple[Callable[[], bytes], ...] = (
        lambda: mutate_document(text, rng),
        lambda: mutate_bytes(text, rng),
        lambda: text.replace(b":", b" : ").replace(b",", b",\n"),
        lambda: b" " * rng.randrange(9) + text + b" \t\r\n\0\f"[: rng.randrange(7)],
        lambda: text[:-1] + b"," + text[1:],  # all of it twice
        number,
        dtype,
        word,
    )
    text = rng.choice(changes)()
    if rng.randrange(6) == 0:
        rest = rng.choice((rest + b"x", rest[:-1], rest * 2, b""))
    return struct.pack("<Q", len(text) + rng.choice((0, 0, 0, 0, 0, 0, 0, 1, -1)) & 2**64 - 1) + text + rest
