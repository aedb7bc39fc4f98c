"""Hostile coded keyframes: what the index says of the coding, and what is in a piece."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

from blake3 import blake3

from pulse_registry.errors import BaseMismatch, CorruptObject, UnsupportedFormat
from pulse_registry.format.exponent_coding import coded_header
from tests.security.attacks.edits import index, shard_ref
from tests.security.attacks.forge import CELLS, key_of
from tests.security.attacks.row import Forge, Rows
from tests.support.records import DictStore

_NAME = "model-00001-of-00001.safetensors"


def coding(edit: Callable[[dict[str, Any]], Any]) -> Forge:
    """Change what the index says of the coding."""

    def remade(data: bytes) -> bytes:
        document = json.loads(data)
        edit(document["metadata"]["pulse"])
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    return index(remade)


def sizes(*listed: int) -> Forge:
    """Change the sizes of the pieces."""
    return coding(lambda pulse: pulse["coding"]["shards"][_NAME].update(sizes=list(listed)))


def piece(change: Callable[[bytes], bytes], header: Callable[[int], bytes] = coded_header) -> Forge:
    """Change the one coded piece, and make header, sizes and hashes fit."""

    def forge(store: DictStore) -> None:
        key = key_of(store, "model-00001")
        data = store.objects[key]
        changed = change(data[8 + int.from_bytes(data[:8], "little") :])
        data = header(len(changed)) + changed
        store.objects[key] = data
        shard_ref(store, data)

        def point(pulse: dict[str, Any]) -> None:
            pulse["pieces"]["blake3"] = {_NAME: [blake3(data).hexdigest()]}
            pulse["coding"]["shards"][_NAME]["sizes"] = [len(changed)]

        coding(point)(store)

    return forge


def cells(change: Callable[[bytearray], Any]) -> Forge:
    """Change the coded cells, which follow the header of the plain shard: a head of 8 bytes, planes, marks, escapes."""

    def remade(data: bytes) -> bytes:
        start = 8 + int.from_bytes(data[:8], "little")
        coded = bytearray(data[start:])
        change(coded)
        return data[:start] + bytes(coded)

    return piece(remade)


def _set(at: int, *values: int) -> Callable[[bytearray], None]:
    def change(coded: bytearray) -> None:
        coded[at : at + len(values)] = bytes(values)

    return change


def _escapes(count: int) -> Callable[[bytearray], None]:
    return lambda coded: struct.pack_into("<I", coded, 4, count)


CODED: Rows = {
    "a coding that is not known": (
        coding(lambda p: p["coding"].update(format="pulse-exponents/2")),
        UnsupportedFormat,
    ),
    "a coding of no name": (coding(lambda p: p["coding"].pop("format")), UnsupportedFormat),
    "a coding with a field too many": (coding(lambda p: p["coding"].update(pickle=True)), CorruptObject),
    "a coding without pieces": (coding(lambda p: p.pop("pieces")), CorruptObject),
    "a coding of no shard": (coding(lambda p: p["coding"].update(shards={})), CorruptObject),
    "a shard of no tensors": (coding(lambda p: p["coding"]["shards"][_NAME].update(tensors=0)), CorruptObject),
    "a shard of two tensors": (coding(lambda p: p["coding"]["shards"][_NAME].update(tensors=2)), CorruptObject),
    "a shard of 2^62 tensors": (coding(lambda p: p["coding"]["shards"][_NAME].update(tensors=2**62)), CorruptObject),
    "pieces of an odd size": (coding(lambda p: p["pieces"].update(size=4097)), CorruptObject),
    "no sizes": (sizes(), CorruptObject),
    "a size of no bytes": (sizes(0), CorruptObject),
    "a size of 2^62 bytes": (sizes(2**62), CorruptObject),
    "a size of one byte": (sizes(1), CorruptObject),
    "sizes of two pieces": (sizes(800, 800), CorruptObject),
    "2,000 sizes": (sizes(*[1] * 2000), CorruptObject),
    "another header": (
        piece(lambda data: data, lambda size: coded_header(size).replace(b"pieces", b"tensor")),
        CorruptObject,
    ),
    "a header that is none": (piece(lambda data: data, lambda size: b"\0" * len(coded_header(size))), CorruptObject),
    "eight planes": (cells(_set(0, 8)), CorruptObject),
    "255 planes": (cells(_set(0, 255)), CorruptObject),
    "no planes": (cells(_set(0, 0)), CorruptObject),
    "another window": (cells(lambda coded: coded.__setitem__(1, coded[1] ^ 1)), BaseMismatch),
    "a third field that is not zero": (cells(_set(2, 1)), CorruptObject),
    "no escapes": (cells(_escapes(0)), CorruptObject),
    "more escapes than cells": (cells(_escapes(CELLS + 1)), CorruptObject),
    "2^32 - 1 escapes": (cells(_escapes(2**32 - 1)), CorruptObject),
    "an escape more than codes say": (
        cells(lambda coded: (_escapes(int.from_bytes(coded[4:8], "little") + 1)(coded), coded.append(0))),
        CorruptObject,
    ),
    "a code where there is no cell": (cells(lambda coded: coded.__setitem__(8 + 2 * 63 - 1, 0xFF)), CorruptObject),
    "a byte less": (cells(lambda coded: coded.pop()), CorruptObject),
    "a byte more": (cells(lambda coded: coded.append(0)), CorruptObject),
    "other marks": (cells(lambda coded: coded.__setitem__(-100, coded[-100] ^ 1)), CorruptObject),
    "another name in the plain shard": (piece(lambda data: data.replace(b'"w"', b'"v"', 1)), CorruptObject),
    "a plain shard without its header": (piece(lambda data: b" " * 96 + data[96:]), CorruptObject),
    "nothing in a piece": (piece(lambda data: b""), CorruptObject),
    "10,000 bytes more in a piece": (piece(lambda data: data + bytes(10_000)), CorruptObject),
}
