"""Hostile keyframes and layouts: shards, indexes, pieces, and what a layout claims."""

from __future__ import annotations

import struct

from pulse_registry.errors import CorruptObject, LayoutMismatch, UnsupportedFormat
from tests.security.attacks.edits import (
    first_commit,
    hashes,
    index,
    layout,
    pieces,
    shard,
    shard_header,
    tensor,
)
from tests.security.attacks.forge import CELLS
from tests.security.attacks.row import Rows

KEYFRAMES: Rows = {
    "a shard of 2^62 bytes": (
        first_commit(lambda r: r["keyframe"]["shards"][0].update(size=2**62)),
        CorruptObject,
    ),
    "an index of 2^62 bytes": (first_commit(lambda r: r["keyframe"]["index"].update(size=2**62)), CorruptObject),
    "a shard of no bytes": (shard(lambda data: b""), CorruptObject),
    "a shard of seven bytes": (shard(lambda data: data[:7]), CorruptObject),
    "a shard without its last cell": (shard(lambda data: data[:-2]), CorruptObject),
    "a shard with a cell more": (shard(lambda data: data + b"\0\0"), CorruptObject),
    "a shard whose header is 2^63 bytes": (shard(lambda data: struct.pack("<Q", 2**63) + data[8:]), CorruptObject),
    "a shard whose header ends with the file": (
        shard(lambda data: struct.pack("<Q", len(data) - 8) + data[8:]),
        CorruptObject,
    ),
    "a shard nested 20,000 deep": (
        shard(lambda data: struct.pack("<Q", 20_000) + b"[" * 20_000),
        CorruptObject,
    ),
    "a shard of other tensors": (shard_header(lambda h: {"v": h.pop("w"), **h}), CorruptObject),
    "a shard of no tensors": (shard_header(lambda h: {"__metadata__": {"format": "pt"}}), CorruptObject),
    "a shard without metadata": (shard_header(lambda h: {"w": h["w"]}), CorruptObject),
    "a shard of 200 tensors": (
        shard_header(lambda h: h | {f"t{n}": h["w"] for n in range(200)}),
        CorruptObject,
    ),
    "a shard of 2^62 cells": (
        shard_header(lambda h: h | {"w": h["w"] | {"shape": [2**62], "data_offsets": [0, 2**63]}}),
        CorruptObject,
    ),
    "a shard of the same size and another dtype": (
        shard_header(lambda h: h | {"w": h["w"] | {"dtype": "U16"}}),
        CorruptObject,
    ),
    "a shard of other cells": (shard(lambda data: data[:-2] + b"\1\2"), CorruptObject),
    "an index that is no JSON": (index(lambda data: b"\xff" + data), CorruptObject),
    "an index that is a list": (index(lambda data: b"[" + data + b"]"), CorruptObject),
    "an index nested 20,000 deep": (index(lambda data: b"[" * 20_000), CorruptObject),
    "an index of no bytes": (index(lambda data: b""), CorruptObject),
    "pieces of no bytes": (pieces(lambda p: p.update(size=0)), CorruptObject),
    "pieces of one byte": (pieces(lambda p: p.update(size=1)), CorruptObject),
    "pieces of 2^62 bytes": (pieces(lambda p: p.update(size=2**62)), CorruptObject),
    "pieces of less than nothing": (pieces(lambda p: p.update(size=-8 << 20)), CorruptObject),
    "pieces of another kind": (pieces(lambda p: p.update(sha256={})), CorruptObject),
    "pieces of no shard": (pieces(lambda p: p.update(blake3={})), CorruptObject),
    "pieces of another shard": (
        pieces(lambda p: p.update(blake3={"../" + name: listed for name, listed in p["blake3"].items()})),
        CorruptObject,
    ),
    "no piece": (hashes(lambda listed: []), CorruptObject),
    "a piece twice": (hashes(lambda listed: listed * 2), CorruptObject),
    "1,000 pieces of 4 KiB": (
        pieces(lambda p: p.update(size=4096, blake3={n: ["0" * 64] * 1000 for n in p["blake3"]})),
        CorruptObject,
    ),
    "a piece whose hash is none": (hashes(lambda listed: ["0" * 63]), CorruptObject),
    "a piece whose hash is a number": (hashes(lambda listed: [0]), CorruptObject),
    "the shard twice": (
        first_commit(
            lambda r: r["keyframe"].update(
                shards=[*r["keyframe"]["shards"], r["keyframe"]["shards"][0] | {"key": "objects/keyframe/x/again"}]
            )
        ),
        CorruptObject,
    ),
    "no shards": (first_commit(lambda r: r["keyframe"].update(shards=[])), CorruptObject),
    "a layout of 2^62 cells": (tensor(shape=[2**62]), CorruptObject),
    "a layout of 2^124 cells": (tensor(shape=[2**62, 2**62]), CorruptObject),
    "a layout of an empty tensor of 2^62 columns": (tensor(shape=[0, 2**62]), CorruptObject),
    "a layout of 40 dimensions": (tensor(shape=[1] * 40), CorruptObject),
    "a layout of less than nothing": (tensor(shape=[-1]), CorruptObject),
    "a layout of a dtype that there is not": (tensor(dtype="F6_E2M3"), CorruptObject),
    "a layout of a dtype that its format has not": (tensor(dtype="F4"), CorruptObject),
    "a layout of a newer format than its dtypes need": (
        layout(lambda d: d.update(format="pulse-layout/2")),
        CorruptObject,
    ),
    "a layout of pairs of elements in no dimension": (
        layout(lambda d: (d.update(format="pulse-layout/2"), d["tensors"][0].update(dtype="F4", shape=[]))),
        CorruptObject,
    ),
    "a layout of a newer format": (layout(lambda d: d.update(format="pulse-layout/3")), UnsupportedFormat),
    "a layout of no tensors": (layout(lambda d: d.update(tensors=[])), CorruptObject),
    "a layout of a tensor twice": (layout(lambda d: d.update(tensors=d["tensors"] * 2)), CorruptObject),
    "a layout of the most cells in all dimensions": (tensor(shape=[2**63 - 1] * 32), CorruptObject),
    "a layout of 2^35 cells": (tensor(shape=[2**35]), LayoutMismatch),
    "a layout of 2^42 cells": (tensor(shape=[2**42]), LayoutMismatch),
    "a layout of another shape": (tensor(shape=[CELLS // 2, 2]), LayoutMismatch),
}
